import mxnet as mx


class BadPixel(Exception):
    def __init__(self, row, *, column):
        super().__init__(row, column)
        self.row, self.column = row, column

    def __str__(self):
        return f"bad pixel at {self.row}, {self.column}"


class Check(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        image = in_data[0].asnumpy()
        if image.max() > 1:
            row, column = divmod(int(image.argmax()), image.shape[1])
            raise BadPixel(row, column=column)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("check")
class CheckProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Check()


def step(image):
    return mx.nd.Custom(image + 1, op_type="check").mean()


def main():
    mean = step(mx.nd.eye(2))
    print(mean.asscalar())


main()
