"""Train a Keras model on JAX by a loop of our own, its stateless_call converted."""

import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported

import jax
import keras
from sklearn.datasets import load_digits

import amprewrite


def main() -> None:
    """Train, put the weights back into the model, and evaluate it in float32."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    call = amprewrite.convert(model.stateless_call)

    @jax.jit
    def step(weights, rest, state, x, y):  # noqa: ANN001, ANN202  # pytrees
        def loss(weights):  # noqa: ANN001, ANN202
            scores, after = call(weights, rest, x, training=True)
            return loss_of(y, scores), after

        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        weights, state = optimizer.stateless_apply(state, grads, weights)
        return weights, rest, state, value

    weights = [v.value for v in model.trainable_variables]
    rest = [v.value for v in model.non_trainable_variables]
    state = [v.value for v in optimizer.variables]
    value = jax.numpy.inf
    for part in range(20):
        x, y = images[part::20], labels[part::20]
        weights, rest, state, value = step(weights, rest, state, x, y)
    for variable, trained in zip(model.trainable_variables, weights, strict=True):
        variable.assign(trained)

    right = (model.predict(images, verbose="0").argmax(-1) == labels).mean()
    print(call.plan.summary())
    print(f"last loss {value:.2f}, accuracy of the plain model {right:.2f}")


if __name__ == "__main__":
    main()
