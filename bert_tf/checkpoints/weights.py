"""Assigning named arrays to a model's variables, with everything that does not fit said by name."""

from bert_tf.errors import DataError


def assign(variables, shapes, read, source):
    """Assigns every variable.

    Args:
        variables: list of keras.Variable.
        shapes: dict path -> shape (tuple) of what there is.
        read: function path -> array.
        source: file name for the error.

    Raises:
        DataError: listing every variable that is missing or of another shape; nothing is assigned then.
    """
    missing = [variable.path for variable in variables if variable.path not in shapes]
    misshapen = [
        f"{variable.path} is {list(shapes[variable.path])}, not {list(variable.shape)}"
        for variable in variables
        if variable.path in shapes and tuple(shapes[variable.path]) != tuple(variable.shape)
    ]
    if missing or misshapen:
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"misshapen {', '.join(misshapen)}"] * bool(
            misshapen
        )
        raise DataError(f"{source} does not fit the model: {'; '.join(parts)}")
    for variable in variables:
        variable.assign(read(variable.path))
