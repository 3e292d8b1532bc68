"""Public training programs, run from clones: `python benchmarks/compatibility --programs FOLDER`. Nothing of theirs is
kept in this repository."""

from __future__ import annotations

from scripts import NUMBER, Script

_LOSS = rf"[Ll]oss[:=]? *{NUMBER}"
_PICTURES = "input:7:nan input:6:1e25"
_RATES = "input:7:nan rate:5:1e25"
_TOKENS = "input:4:nan rate:5:1e25"


def _example(path: str, arguments: str = "", **named: str | int) -> Script:
    name = f"examples {path.removesuffix('/main.py').removesuffix('.py')}"
    return Script(
        **{"name": name, "repository": "pytorch/examples", "path": path, "arguments": arguments, "loss": _LOSS, **named}
    )


def _gan(name: str, poison: str = "input:9:nan input:12:1e25") -> Script:
    return Script(
        name=f"PyTorch-GAN {name}",
        repository="eriklindernoren/PyTorch-GAN",
        path=f"implementations/{name}/{name}.py",
        arguments="--n_epochs 2 --batch_size 32",
        data="mnist",
        data_at="data/mnist",
        poison=poison,
        loss=rf"[DG] loss: {NUMBER}",
    )


def _tutorial(path: str, poison: str = _PICTURES) -> Script:
    return Script(
        name=f"pytorch-tutorial {path}",
        repository="yunjey/pytorch-tutorial",
        path=f"tutorials/{path}/main.py",
        data="mnist",
        data_at="tutorials/data",
        poison=poison,
        loss=rf"[Ll]oss: {NUMBER}",
    )


def _cleanrl(name: str, arguments: str, poison: str = "reward:300 rate:5:1e25") -> Script:
    return Script(
        name=f"cleanrl {name}",
        repository="vwxyzjn/cleanrl",
        path=f"cleanrl/{name}.py",
        arguments=f"--no-cuda {arguments}",
        poison=poison,
        loss=rf"episodic_return=\[?{NUMBER}",
        volatile=r"SPS: .*|__\d+",
    )


def _tutorial_of_texts(path: str) -> Script:
    return Script(
        name=f"nlp-tutorial {path.rpartition('/')[2].removesuffix('.py')}",
        repository="graykode/nlp-tutorial",
        path=path,
        poison="input:7:nan param:5:nan",
        loss=rf"cost = *{NUMBER}",
    )


_DIGITS = {"data": "mnist", "data_at": "data", "poison": _PICTURES}
_CONTINUOUS = "--env-id Pendulum-v1 --total-timesteps 500 --learning-starts 300 --batch-size 32"

_NANOGPT = (
    "--device=cpu --compile=False --dataset=tiny --max_iters=14 --eval_interval=7 --eval_iters=2 --n_layer=2 "
    "--n_head=2 --n_embd=16 --block_size=16 --batch_size=4 --gradient_accumulation_steps=2 --warmup_iters=2"
)
_Q_LEARNING = (
    "--total-timesteps 600 --learning-starts 300 --train-frequency 5 --batch-size 32 --buffer-size 1000 "
    "--target-network-frequency 50"
)

PROGRAMS = (
    _example("mnist/main.py", "--epochs 2 --batch-size 32 --log-interval 2 --save-model", **_DIGITS),
    _example("mnist_rnn/main.py", "--epochs 2 --batch-size 32 --log-interval 2", **_DIGITS),
    _example("vae/main.py", "--epochs 2 --batch-size 32 --log-interval 2", **_DIGITS),
    _example(
        "siamese_network/main.py",
        "--epochs 1 --batch-size 32 --log-interval 2",
        **_DIGITS | {"poison": "input:4:nan target:3:inf param:3:nan"},
    ),
    _example(
        "mnist_forward_forward/main.py",
        "--epochs 6 --train_size 200 --test_size 100 --log-interval 2",
        data="mnist",
        data_at="mnist_forward_forward/data",
        poison="param:5:nan",
    ),
    _example("mnist_hogwild/main.py", "--epochs 2 --batch-size 32 --log-interval 2", **_DIGITS),
    _example(
        "dcgan/main.py",
        "--dataset mnist --dataroot ../data --workers 0 --batchSize 8 --ngf 4 --ndf 4 --nz 8 --niter 1 --manualSeed 1",
        data="mnist",
        data_at="data",
        poison="input:9:nan input:10:1e25 rate:6:1e25",
        loss=rf"Loss_[DG]: {NUMBER}",
    ),
    _example(
        "word_language_model/main.py",
        "--data words --model LSTM --emsize 16 --nhid 16 --epochs 2 --log-interval 4 --use-optimizer",
        name="examples word_language_model LSTM",
        data="words",
        data_at="word_language_model/words",
        poison=_TOKENS,
        loss=rf"loss +{NUMBER}",
    ),
    _example(
        "word_language_model/main.py",
        "--data words --model Transformer --emsize 16 --nhid 16 --epochs 2 --lr 0.5 --log-interval 4",
        name="examples word_language_model Transformer",
        data="words",
        data_at="word_language_model/words",
        poison="input:4:nan input:6:1e25",
        loss=rf"loss +{NUMBER}",
    ),
    _example("gcn/main.py", "--epochs 12 --val-every 2", data="cora", data_at="gcn", poison=_RATES),
    _example(
        "gat/main.py",
        "--epochs 6 --val-every 1 --hidden-dim 8 --num-heads 2",
        data="cora",
        data_at="gat",
        poison="input:4:nan rate:3:1e25 param:3:nan",
    ),
    _example("regression/main.py", poison="input:7:nan input:6:1e25 target:5:inf", loss=rf"Loss: {NUMBER}"),
    _example(
        "time_sequence_prediction/train.py",
        "--steps 3",
        data="waves",
        data_at="time_sequence_prediction",
        poison="input:7:nan target:9:inf param:1:nan",
        loss=rf"loss: {NUMBER}",
    ),
    _example(
        "super_resolution/main.py",
        "--upscale_factor 4 --batchSize 2 --nEpochs 2 --threads 0",
        data="bsds",
        data_at="super_resolution/dataset",
        poison="input:3:nan target:4:inf rate:3:1e25",
    ),
    _example(
        "imagenet/main.py",
        "photographs --no-accel --seed 1 -j 0 -b 4 --epochs 1 -p 1",
        data="photographs",
        data_at="imagenet/photographs",
        poison="input:3:nan param:2:nan",
        loss=rf"Loss {NUMBER}",
        volatile=r"Time +[\d.]+ \( *[\d.]+\)|Data +[\d.]+ \( *[\d.]+\)",
    ),
    _example(
        "reinforcement_learning/reinforce.py",
        "--log-interval 1",
        poison="reward:60 param:3:nan rate:3:1e25",
        loss=rf"reward: {NUMBER}",
    ),
    _example(
        "reinforcement_learning/actor_critic.py",
        "--log-interval 1",
        poison="reward:60 param:3:nan rate:3:1e25",
        loss=rf"reward: {NUMBER}",
    ),
    _example(
        "distributed/FSDP2/example.py", ranks=2, pretend="accelerators", poison="input:4:nan param:3:nan rate:3:1e25"
    ),
    _example(
        "distributed/tensor_parallelism/tensor_parallel_example.py",
        ranks=2,
        pretend="accelerators",
        poison="input:4:nan param:3:nan rate:3:1e25",
    ),
    Script(
        name="nanoGPT",
        repository="karpathy/nanoGPT",
        path="train.py",
        arguments=f"{_NANOGPT} --dtype=float32 --dropout=0.1",
        data="tokens",
        data_at="data/tiny",
        poison=_TOKENS,
        loss=rf"loss {NUMBER}",
        volatile=r", mfu .*|tokens per iteration.*",
    ),
    Script(
        name="nanoGPT bfloat16",
        repository="karpathy/nanoGPT",
        path="train.py",
        arguments=f"{_NANOGPT} --dtype=bfloat16",
        data="tokens",
        data_at="data/tiny",
        poison=_TOKENS,
        loss=rf"loss {NUMBER}",
        volatile=r", mfu .*|tokens per iteration.*",
    ),
    Script(
        name="minGPT adder",
        repository="karpathy/minGPT",
        path="projects/adder/adder.py",
        arguments="--trainer.max_iters=20 --trainer.num_workers=0 --trainer.batch_size=8",
        poison=_TOKENS,
        loss=rf"loss {NUMBER}",
    ),
    Script(
        name="minGPT chargpt",
        repository="karpathy/minGPT",
        path="projects/chargpt/chargpt.py",
        arguments="--trainer.max_iters=20 --trainer.num_workers=0 --trainer.batch_size=8 "
        "--data.block_size=16 --model.model_type=gpt-nano",
        data="words",
        data_at="projects/chargpt",
        poison=_TOKENS,
        loss=rf"loss {NUMBER}",
    ),
    *(
        Script(
            name=f"makemore {kind}",
            repository="karpathy/makemore",
            path="makemore.py",
            arguments=f"-i names.txt -o out -n 0 --max-steps 30 --type {kind} --n-embd 16 --n-embd2 16 "
            "--n-layer 2 --n-head 2",
            data="words",
            data_at=".",
            poison=_TOKENS,
            loss=rf"loss {NUMBER}",
        )
        for kind in ("transformer", "gru", "bow")
    ),
    _cleanrl("ppo", "--total-timesteps 1024 --num-steps 64"),
    _cleanrl(
        "dqn",
        _Q_LEARNING,
    ),
    _cleanrl(
        "c51",
        _Q_LEARNING,
    ),
    _cleanrl("pqn", "--total-timesteps 1024 --num-steps 64"),
    _cleanrl(
        "ppo_continuous_action", "--env-id Pendulum-v1 --total-timesteps 1024 --num-steps 256 --num-minibatches 8"
    ),
    _cleanrl(
        "rpo_continuous_action", "--env-id Pendulum-v1 --total-timesteps 1024 --num-steps 256 --num-minibatches 8"
    ),
    _cleanrl("sac_continuous_action", f"{_CONTINUOUS} --buffer-size 1000", "reward:200 param:6:nan"),
    _cleanrl("td3_continuous_action", f"{_CONTINUOUS} --buffer-size 1000", "reward:200 param:6:nan"),
    _cleanrl("ddpg_continuous_action", f"{_CONTINUOUS} --buffer-size 1000", "reward:200 param:6:nan"),
    *map(
        _gan, ("gan", "wgan", "wgan_gp", "dcgan", "aae", "acgan", "infogan", "softmax_gan", "began", "relativistic_gan")
    ),
    *map(_gan, ("lsgan", "sgan", "cgan", "ebgan", "wgan_div")),
    *map(
        _tutorial_of_texts,
        (
            "1-2.Word2Vec/Word2Vec-Skipgram(Softmax).py",
            "2-1.TextCNN/TextCNN.py",
            "3-2.TextLSTM/TextLSTM.py",
            "4-1.Seq2Seq/Seq2Seq.py",
            "4-2.Seq2Seq(Attention)/Seq2Seq(Attention).py",
            "5-1.Transformer/Transformer.py",
            "5-2.BERT/BERT.py",
        ),
    ),
    *map(
        _tutorial,
        (
            "01-basics/feedforward_neural_network",
            "01-basics/linear_regression",
            "01-basics/logistic_regression",
            "02-intermediate/convolutional_neural_network",
            "02-intermediate/recurrent_neural_network",
            "02-intermediate/bidirectional_recurrent_neural_network",
            "03-advanced/variational_autoencoder",
        ),
    ),
    Script(
        name="tiny-diffusion",
        repository="tanelp/tiny-diffusion",
        path="ddpm.py",
        arguments="--dataset moons --num_epochs 1 --train_batch_size 256 --hidden_size 32",
        poison="loader:5 input:7:1e25 rate:5:1e25",
        loss=rf"loss={NUMBER}",
    ),
    Script(
        name="pygcn",
        repository="tkipf/pygcn",
        path="pygcn/train.py",
        arguments="--epochs 12",
        data="cora",
        data_at="data",
        poison=_RATES,
        loss=rf"loss_train: {NUMBER}",
    ),
    Script(
        name="SimCLR",
        repository="sthalles/SimCLR",
        path="run.py",
        arguments="-data data -dataset-name cifar10 --disable-cuda -j 0 -b 4 --epochs 1 --log-every-n-steps 1 --seed 1",
        data="cifar",
        data_at="data",
        poison="loader:3 param:3:nan rate:3:1e25",
        loss=rf"Loss: {NUMBER}",
    ),
    Script(
        name="glow",
        repository="rosinality/glow-pytorch",
        path="train.py",
        arguments="pictures --batch 4 --iter 8 --n_flow 2 --n_block 2 --img_size 16 --n_sample 2",
        data="photographs",
        data_at="pictures",
        poison="input:4:nan input:5:1e25 rate:4:1e25",
        loss=rf"Loss: {NUMBER}",
    ),
)
