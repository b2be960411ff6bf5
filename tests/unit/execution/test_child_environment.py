"""What a child finds where."""

from longshore.execution import child_environment


def test_the_numbers_of_the_pipes_can_stand_behind_a_redirection_in_any_shell() -> None:
    numbers = {child_environment.CHANNEL_FD, child_environment.REPLIES_FD}

    assert numbers <= set(range(3, 10))
    assert len(numbers) == 2


def test_every_variable_is_marked_as_an_attempts_own() -> None:
    names = [name for key, name in vars(child_environment).items() if key.endswith("_VARIABLE")]

    assert len(names) == len(set(names)) == 5
    assert all(name.startswith("LONGSHORE_ATTEMPT") for name in names)
