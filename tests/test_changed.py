"""What `make test-changed` runs."""

import pytest

from tests.changed import test_files as files_for  # pytest would collect it as a test

SEEN = {
    "bert_tf/server/rest.py": "tests/server/test_rest.py",  # imported
    "bert_tf/finetune.py": "tests/test_programs.py",  # a program, named in quotes
    "bert_tf/server/page/page.js": "tests/server/test_page.py",  # of a package
    "tests/learned.py": "tests/text/test_segments.py",
    "docs/serving/tf_serving.md": "tests/inference/test_tokenizers.py",
    "examples/korean.ipynb": "tests/test_examples.py",
}


@pytest.mark.parametrize("path", SEEN)
def test_a_test_that_sees_a_change_is_found_and_one_that_cannot_see_it_is_not(path):
    found = files_for([path])
    assert SEEN[path] in found and "tests/test_locks.py" not in found


def test_a_change_that_one_test_sees_and_one_that_all_see():
    for path in ("CHANGELOG.md", "t/one.none"):  # named in this line alone; "t/" is the end of other names
        assert files_for([path]) == ["tests/test_changed.py"]
    assert {"tests/test_locks.py", *SEEN.values()} <= set(files_for(["tests/conftest.py"]))
