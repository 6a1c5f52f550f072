import mxnet as mx


def step(covariance):
    factor = mx.nd.linalg.potrf(covariance - mx.nd.eye(2))
    return mx.nd.linalg.extractdiag(factor).log().sum()


def main():
    entropy = step(mx.nd.zeros((2, 2)))
    print(entropy.asscalar())


main()
