"""temi: clusters cached embeddings. Read, not run; every value may be changed by --set, e.g. --set batch_size=64"""

# data
DINOV2_MODEL = "dinov2_vitb14"  # only kept: embeddings are made on the spot
CACHE_DIR = ""  # where embeddings_train.pt is kept; empty: a folder of this user among the temporary files
FORCE_RECOMPUTE = False
NUM_CLUSTERS = 20
EMBED_DIM = 64
SAMPLES_PER_CLUSTER = 100
SPREAD = 0.7  # of the clusters' centres in every dimension; the points of a cluster have 1
OUTLIERS = 4  # embeddings that lie four times as far out
KNN = 25

# model
L2_NORM = False  # embeddings of unit length
NUM_HEADS = 8
HIDDEN_DIM = 128
BOTTLENECK_DIM = 64
NORM_BOTTLENECK = True  # points of unit length before the last layer, which bounds the logits
INIT_STD = 0.02
NORM_LAST_LAYER = False  # True: the scale of the last layer stays 1

# loss
BETA = 0.6
STUDENT_TEMP = 0.1
TEACHER_TEMP = 0.05
PROBS_MOMENTUM = 0.9  # of p_k, the running mean of the teacher's probabilities
MOMENTUM_TEACHER = 0.98
NORMALISE_WEIGHTS = False  # pairs count by their share of the batch's weights

# training
LEARNING_RATE = 4e-3
MIN_LR = 1e-6
WEIGHT_DECAY = 1e-4
WARMUP_STEPS = 10
SCHEDULE_STEPS = 400
BATCH_SIZE = 128
CLIP_GRAD = 1.0
MIXED_PRECISION = "no"  # no, bf16, fp16
STEPS_PER_EPOCH = 12
