import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from bert_tf.errors import DataError
from bert_tf.metrics.calibration import calibration_errors, reliability
from tests.errors import raises


def test_the_bins_equal_scikit_learns():
    rng = np.random.default_rng(0)
    confidences = rng.beta(5, 2, 500)
    correct = rng.random(500) < confidences**2
    confidence, right = (reliability(confidences, correct, 10)[name] for name in ("confidence", "accuracy"))
    filled = ~np.isnan(confidence)
    true, predicted = calibration_curve(correct, confidences, n_bins=10)
    np.testing.assert_allclose(right[filled], true)
    np.testing.assert_allclose(confidence[filled], predicted)


def test_errors_by_hand():
    # Bins [0, 0.5] and (0.5, 1]: confidence 0.4, 1 of 3 correct; confidence 0.9, 0 of 1 correct; 0.5 is in the lower.
    found = calibration_errors([0.9, 0.4, 0.3, 0.5], [False, True, True, True], bins=2)
    assert found == pytest.approx(
        {
            "expected_calibration_error": (3 * 0.6 + 0.9) / 4,
            "confidence": 0.525,
        }
    )
    assert reliability([0.0, 0.5, 1.0], [True] * 3, 2)["count"].tolist() == [2, 1]


def test_a_calibrated_model_has_only_random_error():
    rng = np.random.default_rng(1)
    confidences = rng.uniform(0.5, 1, 50000)
    calibrated = calibration_errors(confidences, rng.random(50000) < confidences)
    overconfident = calibration_errors(confidences, rng.random(50000) < confidences - 0.2)
    assert calibrated["expected_calibration_error"] < 0.01
    assert overconfident["expected_calibration_error"] == pytest.approx(0.2, abs=0.01)


def test_values_that_are_not_probabilities_are_refused():
    for bad in (1.2, -0.1, float("nan")):
        with raises(DataError, "probability"):
            reliability([0.5, bad], [True, True])
    with raises(DataError, "1 confidences", "2 answers"):
        reliability([0.5], [True, False])
