"""Programs that fail at run time: well-formed calls, and values, resources or kernels that fail.

Each takes `side`, which makes a tensor lazy or leaves it plain, and returns what reads the failure
when it is read. Each is run eagerly and in every mode (test_errors_corpus.py): the exception's type
and text, and the innermost line in *this* file, have to be the same.
"""

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.programs.failing_kernels import RAISING, copied, mutates, twice, two


def t(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


# ---- indexing


def scaled_then_indexed(s):
    x = s(torch.ones(3)) * 2
    return x[s(t(7))] + 1


def two_ops_on_a_line(s):
    x, i = s(torch.ones(3)), s(t(7))
    y = x + 1; z = y.take(i)  # noqa: E702  # fmt: skip
    return z


def in_a_comprehension(s):
    x, good, bad = s(torch.ones(3)), s(t(0)), s(t(9))
    return torch.stack([x[i] for i in (good, bad)])


def in_a_generator(s):
    x = s(torch.ones(3))
    return next(y for y in (x.take(i) for i in [s(t(5))]))


def in_a_lambda(s):
    return (lambda x, i: x.index_select(0, i))(s(torch.ones(3)), s(t(4)))  # noqa: PLC3002


def in_a_decorator(s):
    def twice(function):
        @functools.wraps(function)
        def decorated(*args):
            return function(*args) + function(*args)

        return decorated

    @twice
    def take(x, i):
        return x.take(i)

    return take(s(torch.ones(3)), s(t(4)))


def in_a_method(s):
    class Model(torch.nn.Module):
        def forward(self, x, i):
            return x.gather(0, i)

    return Model()(s(torch.ones(3)), s(t(4)))


def in_a_sequential(s):
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.ReLU())
    return net(s(t(1, 9)))


def in_a_thread_pool(s):
    from concurrent.futures import ThreadPoolExecutor

    x, i = s(torch.ones(3)), s(t(8))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: wrapped_take(s, x, i)).result()


def wrapped_take(s, x, i):
    return s(x).take(s(i))


def under_autocast(s):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = s(torch.ones(3, 3)) @ s(torch.ones(3, 3))
        return x[s(t(3))]


def under_inference_mode(s):
    with torch.inference_mode():
        return s(torch.ones(3)).take(s(t(3)))


def put_accumulates(s):
    x = s(torch.zeros(3))
    x.index_put_((s(t(5)),), s(torch.ones(1)), accumulate=True)
    return x


def assigned(s):
    x = s(torch.zeros(3))
    x[s(t(3))] = 1.0
    return x


def scatter_of_reduce(s):
    x = s(torch.ones(3))
    return x.scatter_reduce(0, s(t(0, 7)), s(torch.ones(2)), "sum")


def index_copied(s):
    return s(torch.ones(3)).index_copy(0, s(t(4)), s(torch.ones(1)))


def index_added(s):
    return s(torch.ones(3)).index_add(0, s(t(4)), s(torch.ones(1)))


def index_filled(s):
    return s(torch.ones(3)).index_fill(0, s(t(4)), 2.0)


def two_index_tensors(s):
    return s(torch.ones(2, 2))[s(t(0, 1)), s(t(1, 2))]


# ---- linear algebra


def inverted(s):
    a = s(torch.zeros(2, 2))
    return torch.linalg.inv(a)


def solved(s):
    return torch.linalg.solve(s(torch.zeros(2, 2)), s(torch.ones(2)))


def inverted_batch(s):
    return torch.linalg.inv(s(torch.stack([torch.eye(2), torch.zeros(2, 2)])))


def lower_root(s):
    a = s(torch.ones(3, 3)) * -1
    return torch.linalg.cholesky(a).sum()


def svd_of_nan(s):
    return torch.linalg.svd(s(torch.full((3, 3), float("nan"))))[1]


def lu_of_zeros(s):
    return torch.linalg.lu_factor(s(torch.zeros(2, 2)))[0]


def inverted_and_checked(s):
    return torch.linalg.inv_ex(s(torch.zeros(2, 2)), check_errors=True)[0]


def solved_by_ldl(s):
    return torch.linalg.ldl_factor_ex(s(torch.zeros(2, 2)), check_errors=True)[0]


def tensor_inverted(s):
    return torch.linalg.tensorinv(s(torch.zeros(4, 2, 2)), ind=1)


# ---- losses, embeddings, random


def labels(s):
    logits = s(torch.ones(2, 3)) * 2
    return F.cross_entropy(logits, s(t(0, 3)))


def weighted_labels(s):
    return F.cross_entropy(s(torch.ones(1, 3)), s(t(-5)), weight=s(torch.ones(3)))


def labels_of_nll(s):
    return F.nll_loss(s(torch.ones(1, 3)), s(t(4)))


def labels_of_images(s):
    return F.cross_entropy(s(torch.ones(1, 3, 2, 2)), s(torch.full((1, 2, 2), 5)))


def margin_labels(s):
    return F.multi_margin_loss(s(torch.ones(1, 3)), s(t(4)))


def probabilities(s):
    return F.binary_cross_entropy(s(torch.full((2,), 1.5)), s(torch.ones(2)))


def embedded(s):
    return F.embedding(s(t(0, 4)), s(torch.ones(4, 2)))


def embedded_bag(s):
    return F.embedding_bag(s(t(0, 4)), s(torch.ones(4, 2)), s(t(0)))


def drawn(s):
    weights = s(torch.tensor([float("nan"), 1.0]))
    return torch.multinomial(weights, 1)


def drawn_from_zeros(s):
    return torch.multinomial(s(torch.zeros(2)), 1)


def drawn_poisson(s):
    return torch.poisson(s(torch.full((2,), -1.0)))


def drawn_normal(s):
    return torch.normal(s(torch.zeros(2)), s(torch.full((2,), -1.0)))


def drawn_bernoulli(s):
    return torch.bernoulli(s(torch.full((2,), 2.0)))


# ---- integers, histograms, values needed at the call


def divided(s):
    return s(t(1, 2)) // s(t(1, 0))


def remainder(s):
    return s(t(5)) % s(t(0))


def histogram(s):
    return torch.bincount(s(t(-1, 2)))


def histogram_of_infinity(s):
    return torch.histc(s(torch.tensor([1.0, float("inf")])), bins=4)


def number_of_classes(s):
    return F.one_hot(s(t(5)), 3)


def repeats(s):
    return s(torch.ones(2)).repeat_interleave(s(t(-1, 1)))


def quantile_out_of_range(s):
    return torch.quantile(s(torch.ones(3)), s(torch.tensor([1.5])))


def asserted(s):
    x = s(torch.zeros(())) * 1
    torch._assert_async(x, "the value is not true")
    return x


def number_of_a_vector(s):
    return (s(torch.ones(2)) + 1).item()


def truth_of_a_vector(s):
    return bool(s(torch.ones(2)) > 0)


def numpy_of_a_leaf(s):
    return (s(torch.ones(2)).requires_grad_() + 1).numpy()


# ---- memory


def out_of_memory(s):
    huge = s(torch.ones(1)).expand(1 << 46)
    return (huge + 1)[0]


# ---- custom ops


def kernel(name):
    def program(s):
        x = s(torch.ones(2)) + 1
        return RAISING[name](x) * 2

    program.__name__ = "kernel_" + name.replace(" ", "_")
    return program


def kernel_that_writes(s):
    x = s(torch.ones(2)) + 0
    mutates(x)
    return x


def kernel_of_two_results(s):
    first, _ = two(s(torch.ones(2)))
    return first


def function_of_numpy(s):
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(np.linalg.inv(x.numpy()))

    return Rounded.apply(s(torch.zeros(2, 2)))


# ---- gradients


def in_backward(s):
    x = s(torch.ones(2)).requires_grad_()
    loss = (copied(x) * 2).sum()
    loss.backward()
    return x.grad


def in_double_backward(s):
    x = s(torch.ones(2)).requires_grad_()
    (grad,) = torch.autograd.grad((twice(x) * x).sum(), x, create_graph=True)
    (grad * 2).sum().backward()
    return x.grad


def in_grad_of_a_failure(s):
    x = s(torch.ones(3)).requires_grad_()
    y = x.take(s(t(3)))
    y.sum().backward()
    return x.grad


def checkpointed(s):
    def block(x, i):
        return x.exp().take(i)

    x = s(torch.ones(3)).requires_grad_()
    return checkpoint(block, x, s(t(3)), use_reentrant=False)


def checkpointed_reentrant(s):
    x = s(torch.ones(2)).requires_grad_()
    checkpoint(lambda x: copied(x * 2) * 2, x, use_reentrant=True).sum().backward()
    return x.grad


def vectorized(s):
    return torch.func.vmap(lambda x: torch.linalg.inv(x))(s(torch.zeros(2, 2, 2)))


def gradient_function(s):
    return torch.func.grad(lambda x: RAISING["ValueError"](x).sum())(s(torch.ones(2)))


def step_of_an_optimizer(s):
    w = torch.nn.Parameter(s(torch.ones(3)))
    optimizer = torch.optim.SGD([w], lr=0.1)
    loss = F.embedding(s(t(3)), w.view(3, 1)).sum()
    loss.backward()
    optimizer.step()
    return w


# ---- data


class Broken(torch.utils.data.Dataset):
    def __init__(self, s):
        self.s = s

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.s(torch.ones(3)).take(self.s(t(i + 1)))


def dataset(s):
    batches = list(torch.utils.data.DataLoader(Broken(s), batch_size=2))
    return batches[-1]


def collate(s):
    def collated(items):
        x = torch.stack([s(item) for item in items])
        return x.index_select(0, s(t(len(items))))

    data = [torch.ones(2), torch.zeros(2)]
    return next(iter(torch.utils.data.DataLoader(data, batch_size=2, collate_fn=collated)))


PROGRAMS = [
    scaled_then_indexed, two_ops_on_a_line, in_a_comprehension, in_a_generator, in_a_lambda,
    in_a_decorator, in_a_method, in_a_sequential, in_a_thread_pool, under_autocast,
    under_inference_mode, put_accumulates, assigned, scatter_of_reduce, index_copied, index_added,
    index_filled, two_index_tensors,
    inverted, solved, inverted_batch, lower_root, svd_of_nan, lu_of_zeros,
    inverted_and_checked, solved_by_ldl, tensor_inverted,
    labels, weighted_labels, labels_of_nll, labels_of_images, margin_labels, probabilities,
    embedded, embedded_bag, drawn, drawn_from_zeros, drawn_poisson, drawn_normal, drawn_bernoulli,
    divided, remainder, histogram, histogram_of_infinity, number_of_classes, repeats,
    quantile_out_of_range, asserted, number_of_a_vector, truth_of_a_vector,
    numpy_of_a_leaf, out_of_memory,
    *(kernel(name) for name in RAISING), kernel_that_writes, kernel_of_two_results,
    function_of_numpy,
    in_backward, in_double_backward, in_grad_of_a_failure, checkpointed, checkpointed_reentrant,
    vectorized, gradient_function, step_of_an_optimizer, dataset, collate,
]  # fmt: skip
