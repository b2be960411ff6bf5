"""Faults that the tests of who is at work must notice."""

from functools import partial

from tests.mutants.fault import Fault, Part

_PRESENCE = "adapters/process/test_presence.py"

_fault = partial(Fault, part=Part.PRESENCE)
_in_presence = partial(_fault, file="adapters/process/presence.py")
_in_killing = partial(_fault, file="adapters/process/killing.py")
_in_table = partial(_fault, file="adapters/process/table.py")

PRESENCE_FAULTS = (
    _in_presence(
        name="a worker that lives is taken for gone",
        old="        except BlockingIOError:\n            return False\n        finally:",
        new="        except BlockingIOError:\n            return True\n        finally:",
        caught_by=f"{_PRESENCE}::"
        "test_a_worker_is_here_until_its_process_ends_and_gone_from_then_on",
    ),
    _in_presence(
        name="a worker that was never here is gone",
        old="return False  # a remote worker",
        new="return True  # a remote worker",
        caught_by=f"{_PRESENCE}::test_nothing_is_known_of_a_worker_that_was_never_here",
    ),
    _in_presence(
        name="one s own worker is gone",
        old="        if worker_id in self._locks:\n            return False\n",
        new="        if worker_id in self._locks:\n            return True\n",
        caught_by=f"{_PRESENCE}::test_one_s_own_worker_is_here",
    ),
    _in_presence(
        name="children of the dead live on",
        old="            kill_group(int(process_id), started=started)\n",
        new="            pass\n",
        caught_by=f"{_PRESENCE}::"
        "test_clearing_kills_the_children_of_a_dead_worker_and_their_children",
    ),
    _in_table(
        name="only a group is killed and not the session",
        old="leader in (group, session)",
        new="leader == group",
        caught_by=f"{_PRESENCE}::"
        "test_clearing_kills_those_of_a_child_s_session_who_have_a_group_of_their_own",
    ),
    _in_presence(
        name="children that were forgotten are killed",
        old="                    children.pop(process_id, None)\n",
        new="                    pass\n",
        caught_by=f"{_PRESENCE}::test_a_child_that_was_forgotten_is_left_alone",
    ),
    _in_presence(
        name="whoever has the number of a child is killed",
        old="kill_group(int(process_id), started=started)",
        new="kill_group(int(process_id))",
        caught_by=f"{_PRESENCE}::test_a_number_that_has_gone_to_somebody_else_is_left_alone",
    ),
    _in_presence(
        name="many fill one role",
        old="            os.close(opened)\n            return False\n",
        new="            os.close(opened)\n            return True\n",
        caught_by=f"{_PRESENCE}::"
        "test_one_process_of_the_machine_fills_a_role_and_the_next_when_it_ends",
    ),
    _in_presence(
        name="a role is never given up",
        old="            os.close(self._roles.popitem()[1])\n",
        new="            self._roles.popitem()\n",
        caught_by=f"{_PRESENCE}::test_a_role_that_is_given_up_can_be_filled_by_another",
    ),
)
