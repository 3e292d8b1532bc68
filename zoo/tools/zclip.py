"""ZClip (package `zclip`): clips by a z-score of the gradient norm. It says nothing."""

from __future__ import annotations

from zoo.running import Run


class ZClip:
    """With the defaults of its authors."""

    name = "zclip"
    about = "`zclip`"
    packages = ("zclip",)
    preload = ("zclip",)
    stops = False

    def train(self, run: Run) -> None:
        """Train to the end."""
        from zclip import ZClip as Clip

        case = run.build()
        clip = Clip()
        for batch in run.batches():
            run.loss(batch).backward()
            clip.step(case["model"])
            case["optimizer"].step()
            case["optimizer"].zero_grad()


TOOLS = (ZClip(),)
