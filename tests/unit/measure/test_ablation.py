from amprewrite.measure.runs import Seconds


def test_the_price_is_the_difference_of_both_times():
    assert Seconds(converted=3.0, restored=5.0).more == 2.0
    assert Seconds(converted=5.0, restored=3.0).more == -2.0
