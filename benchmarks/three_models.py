"""A normal ViT, a robust one and a CNN on CIFAR-10 through every suite and study, and the page that compares them.

    python benchmarks/three_models.py --data folder:DIR --work FOLDER [-n 1000] [--at-once 6] [--out FILE.jsonl]
    python benchmarks/three_models.py ... --vit MODEL --robust MODEL --cnn MODEL

The normal two are trained here, by one recipe, unless they are given. Suites: AutoAttack, corruptions, gray level,
rotations and translations, transfer between them; then the studies, on fewer images. One JSON line per model and suite
with all its measures. Studies that a model does not support (attention of a CNN) are refused, which the log records.
Interrupted, the same command resumes.
"""

import argparse
import json
import subprocess
from pathlib import Path

import torch
from jobs import VITADEL, Job, accuracies_of, evaluate, run_all, train
from record import hardware, versions, write_record

RECIPE = "cifar10-vit-tiny-standard-short"
SUITES = ("adversarial", "corruptions", "gray-level", "spatial")
STUDIES = (
    "correlation",
    "lesion",
    "restricted-attention",
    "perturbations",
    "perturbation-semantics",
    "feature-visualization",
    "saliency",
    "convergence",
)
THREAT = "linf:8/255"
ATTACKING = ("perturbations", "perturbation-semantics", "saliency", "convergence")


def jobs_of(args: argparse.Namespace) -> tuple[dict[str, str], list[Job]]:
    """The models by name, and all jobs."""
    given = {"vit": args.vit, "robust": args.robust, "cnn": args.cnn}
    models = {name: model or str(args.work / name) for name, model in given.items()}
    convolutional = ("model.start=timm:resnet10t", "model.patch_size=null")
    jobs = []
    for name, settings in {"vit": (), "cnn": convolutional}.items():
        if given[name] is None:
            epochs = f"plan.epochs={args.epochs}"
            jobs.append(Job(name, train(RECIPE, args.data, args.work / name, epochs, *settings, *args.set)))
    trained = tuple(job.name for job in jobs)
    for name, model in models.items():
        others = [other for other in models if other != name]
        ready = tuple(one for one in trained if one == name)
        images = f"{args.data}[:{args.n}]"
        for suite in SUITES:
            run = f"{name}-{suite}"
            jobs.append(Job(run, evaluate(model, images, suite, THREAT, args.work / run), ready))
        sources = f"transfer:sources={'+'.join(models[other] for other in others)}"
        transfer = evaluate(model, images, sources, THREAT, args.work / f"{name}-transfer")
        jobs.append(Job(f"{name}-transfer", transfer, trained))
        for study in STUDIES if args.studied else ():
            text = study
            if study == "perturbation-semantics":
                text += f":classifiers={models[others[0]]}+{models[others[1]]}"
            command = ["analyze", text, model, "--data", f"{args.data}[:{args.studied}]", "--json"]
            threat = ["--threat", THREAT] if study in ATTACKING else []
            run = f"{name}-{study}"
            jobs.append(Job(run, [*command, *threat, "--run", str(args.work / run)], trained))
    return models, jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--vit")
    parser.add_argument("--cnn")
    parser.add_argument("--robust", default="zoo:cifar10-vit-tiny-short")
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--studied", type=int, default=200, help="images for the studies; 0 leaves these out")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], help="for both trainings, as of vitadel train")
    parser.add_argument("--within", type=float, help="seconds; what is not done by then is left for the next call")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    models, jobs = jobs_of(args)
    took = run_all(jobs, args.work / "logs", args.at_once, args.within)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name, suite in [(name, suite) for name in models for suite in (*SUITES, "transfer")]:
        for file in (args.work / f"{name}-{suite}").glob("eval/*/summary.json"):
            summary = json.loads(file.read_text())
            measured = {key: summary[key] for key in ("n", "clean", "measures") if key in summary}
            if summary.get("attacks"):
                measured["left"] = accuracies_of(args.work / f"{name}-{suite}")
            about = {"benchmark": "three-models", "data": Path(args.data).name, "model": name, "suite": suite}
            cost = {"seconds": round(took.get(f"{name}-{suite}", 0.0), 1), "at_once": args.at_once}
            write_record({**about, **cost, **hardware(device), "versions": versions("timm"), **measured}, args.out)
    folders = [str(args.work / job.name) for job in jobs if job.name in took]
    page = ["report", *folders, "--out", str(args.work / "report.html")]
    subprocess.run([*VITADEL, *page], check=True)  # noqa: S603 - our own command


if __name__ == "__main__":
    main()
