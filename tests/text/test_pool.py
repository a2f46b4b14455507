from keras_bert_flow.text.rows import held_out_choice, keyed_number


def test_held_out_documents_depend_on_their_id_and_the_seed_alone():
    names = [f"{number:032x}" for number in range(1000)]
    chosen = [*map(held_out_choice(0.3, seed=7), names)]
    assert chosen == [keyed_number(7, "held out", name) < 0.3 * 2**64 for name in names]
    assert abs(sum(chosen) - 300) < 4 * (1000 * 0.3 * 0.7) ** 0.5  # four standard deviations
    assert chosen != [*map(held_out_choice(0.3, seed=8), names)]
    assert not any(map(held_out_choice(0.0, seed=7), names))
