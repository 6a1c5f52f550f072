import torch
from lazyeng import lazy, wrap


class BadPixel(Exception):
    def __init__(self, row, *, column):
        super().__init__(row, column)
        self.row, self.column = row, column

    def __str__(self):
        return f"bad pixel at {self.row}, {self.column}"


@torch.library.custom_op("camera::check", mutates_args=())
def check(image: torch.Tensor) -> torch.Tensor:
    if image.max() > 1:
        row, column = divmod(int(image.argmax()), image.shape[1])
        raise BadPixel(row, column=column)
    return image.clone()


check.register_fake(torch.empty_like)


def step(image):
    return check(image + 1).mean()


def main():
    with lazy():
        mean = step(wrap(torch.eye(2)))
    print(mean.item())


main()
