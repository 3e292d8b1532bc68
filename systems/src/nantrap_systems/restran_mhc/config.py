"""restran_mhc. Read, not run; every value may be changed by --set, e.g. --set mhc_n=4"""

# model
MODEL_TYPE = "restran_mhc"  # or restran: no hyper-connections
CHANNELS = 32
MHC_N = 2  # streams
MHC_BLOCKS = 3  # blocks that are wrapped
MHC_COLLAPSE = False  # True: every block makes its own streams and ends with their mean
MHC_ALPHA = 0.01  # where alpha_pre and alpha_post begin
MHC_ALPHA_RES = 0.01  # where alpha_res begins
NUM_HEADS = 4
FRAME_STRIDE = 4  # pixels to a column of the output, 4 or 8

# data
NUM_FRAMES = 3
HEIGHT = 16
WIDTH = 72
AUGMENTATION_LEVEL = "light"  # light, medium or full; 0, 1 or 2
MISSING_FRAMES = 0.02  # share
BLACK_FRAMES = 0.0  # share
OVERSAMPLE_RARE = 0.5  # 0 draws every plate alike

# training
LEARNING_RATE = 1e-2  # at the top of the cycle
WEIGHT_DECAY = 0.01
GRAD_CLIP = 1.0
BATCH_SIZE = 16
EPOCHS = 30
STEPS_PER_EPOCH = 10
TOTAL_STEPS = 0  # of the whole cycle; 0: EPOCHS * STEPS_PER_EPOCH
WARMUP = 0.1  # share of the cycle in which the learning rate rises
USE_CUDNN_BENCHMARK = False
MIXED_PRECISION = "no"  # no, bf16, fp16
LOSS_SCALING = True  # a GradScaler, with fp16
LOSS_SCALE = 65536.0  # where it begins

# an earlier run that this one continues
EARLIER_STEPS = 0  # 0 for none
EARLIER_RATE = 1e-2  # its learning rate
EARLIER_ACCIDENT = False  # a frame of NaN in its last batch
