"""The notes of crime.md: what is simulated, which numbers are the paper's, and which are free."""

from typing import Any

from crime_devices import CLOUD, GATEWAY, LOADED, Devices, dilated
from crime_worlds import OURS, PAPERS, by_spread


def notes(like: Devices, times: dict[str, Any]) -> tuple[str, ...]:
    """Paragraphs, with the numbers of this run."""
    factors = ", ".join(f"{level} {factor:.1f}" for level, factor in dilated(times, like).items())
    three, four = by_spread(3)[:1], by_spread(4)[:2]
    chosen = [
        f"{w.trace.name} from row {w.first + 2}, {w.seconds / 3600:g} h, {w.spread_s * 1e3:.0f} ms wide"
        for w in (*three, *four)
    ]
    cove = like.curves["CoVe-300"]["end"]
    ours, plain = (policy.settings(64) for policy in (OURS, PAPERS))
    return (
        "Everything here is simulated except the measured curves: the routers are those of `pliant node`, "
        "under a virtual clock, one input after another. A ping and the reception of a broadcast delay "
        "the next input, as in the paper; a real node does both concurrently. *Over the oracle* compares "
        "with the oracle's own run, whose clock runs ahead; *at its own moments*, with the best device at "
        "each moment of our run. The oracle knows each input's time on each device beforehand, including "
        "noise; *of it noise* is the loss of a policy that knows all links at every moment, and the mean "
        "time of each length on each device.",
        "Curves `reconstructed` are derived from the paper's text. From the paper: the three slopes' ratios "
        f"(1 : {GATEWAY:.3f} : {CLOUD:.4f}, Figure 3's MSE and R²), the end node's slope and constant "
        f"({1e3 * (cove.at(64) - cove.at(0)) / 64:.1f} ms per word, {1e3 * cove.at(0):.1f} ms, which give 19 "
        "% and 10 % at 200 ms on our SNLI lengths), both round trips of Figure 3 (break-evens 4 and 11), "
        f"Bluetooth's mean ({like.ble_s * 1e3:.0f} ms, Table 2), SNLI_200's and IMDB's means (Tables 1 and "
        f"2), spreads (Figure 3's residuals), the loaded gateway ({LOADED:.2f} times slower, Figure 6). "
        "Free parameters: the constants of gateway (in the slopes' proportion) and cloud (0), IMDB's (0), "
        "Bluetooth's shape and its 0.7 Mbit/s, log-normal noise. Table 1 on SNLI and SQuAD is not an input, "
        "so it is a check.",
        "Curves `measured` are this machine's medians by length, one thread, dilated (times slower: "
        f"{factors}) so that CoVe-300's slopes on the three devices are those above; noise is each "
        "measured time divided by the median of its length, without the common factor of its round (drift), "
        f"drawn at random from the nearest length. {_spread(times)} The smaller models run on the same "
        "dilated devices, so the gateway is not slower than the end node on IMDB, unlike the paper's GPU.",
        "The paper's rows cannot all have one link: artificial over RIPE, cloud over end node alone is "
        "1.04 for SNLI and SQuAD and 0.56 for SNLI_200 and IMDB, for any devices. As RIPE's mean would then "
        "have to be 191 ms against 200, the artificial profile of the last two seems to have been about "
        "half as long; ours is 100, 200, 300 ms in all rows.",
        "Inputs: SNLI's premises (median 14 words and marks, the paper 12), XQuAD's English questions, "
        "which are SQuAD's (11; 9), IMDB's test reviews (199); resampled with replacement.",
        "RIPE Atlas: of all consecutive windows without a lost probe and with all round trips within 100 "
        f"to 245 ms, those with the largest spread: {'; '.join(chosen) or 'not available'}. The paper's own "
        "measurement (1437285) is not among the 40. A window plays in real time and repeats if a run takes "
        "longer.",
        f"Settings, with the paper's in brackets if given: T_ping {ours.ping_after_s:g} s, up to four "
        "times that if nothing changes (for example 1 min; 1 to 10 min are best, Figure 13), refitted "
        f"every M_l = {ours.refit_every} of W = {ours.window} local inferences (M_l is not given; W 10 to "
        f"100), T_th {1e3 * ours.threshold_s:g} ms and {ours.threshold_ratio:.0%} (not given). *The paper's "
        f"policy* runs here with T_ping {plain.ping_after_s:g} s, M_l = {plain.refit_every}, W = "
        f"{plain.window}, T_th {1e3 * plain.threshold_s:g} ms.",
        "See also: crime_real.md (three real nodes), crime_faults.md (killed nodes, failed links), "
        "crime_node.md (a node's overhead, and saturation), crime_decide.md (the time of a decision).",
    )


def _spread(times: dict[str, Any]) -> str:
    """The commit of the measured times, and their spread."""
    return (
        f"Measured on {times['commit']}; times at one length were spread by {100 * times['spread']:.1f} % "
        "(standard deviation over the mean)."
    )
