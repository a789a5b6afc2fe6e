from amprewrite.measure.samples import Walked


def test_no_walk_has_no_graph():
    assert (Walked().reference, Walked().graph, Walked().notes) == ("", None, ())
