import mxnet as mx


class Half(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] / 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        raise NotImplementedError("no gradient for half")


@mx.operator.register("half")
class HalfProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Half()


def step(x):
    return mx.nd.Custom(x, op_type="half").sum()


def main():
    x = mx.nd.ones((2,))
    x.attach_grad()
    with mx.autograd.record():
        loss = step(x)
    loss.backward()
    print(x.grad.asnumpy())


main()
