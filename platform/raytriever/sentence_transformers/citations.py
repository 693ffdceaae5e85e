"""BibTeX entries of the papers of the losses, for the model card that sentence-transformers writes."""

MANN_WHITNEY = """
@misc{optimizing-what-matters,
    title={Optimizing What Matters: {AUC}-Driven Learning for Robust Neural Retrieval},
    author={Anonymous},
    note={Under double-blind review}
}
"""

INFONCE = """
@misc{oord2019representationlearningcontrastivepredictive,
    title={Representation Learning with Contrastive Predictive Coding},
    author={Aaron van den Oord and Yazhe Li and Oriol Vinyals},
    year={2019},
    eprint={1807.03748},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""

MULTI_POSITIVE = """
@misc{multiple-positive-passages,
    title={Training Dense Retrievers with Multiple Positive Passages},
    author={Benben Wang and Minghao Tang and Hengran Zhang and Jiafeng Guo and Keping Bi}
}
"""

TRIPLET = """
@misc{schroff2015facenet,
    title={{FaceNet}: A Unified Embedding for Face Recognition and Clustering},
    author={Florian Schroff and Dmitry Kalenichenko and James Philbin},
    year={2015},
    eprint={1503.03832},
    archivePrefix={arXiv},
    primaryClass={cs.CV}
}
"""

KL = """
@misc{santhanam2022colbertv2,
    title={{ColBERTv2}: Effective and Efficient Retrieval via Lightweight Late Interaction},
    author={Keshav Santhanam and Omar Khattab and Jon Saad-Falcon and Christopher Potts and Matei Zaharia},
    year={2022},
    eprint={2112.01488},
    archivePrefix={arXiv},
    primaryClass={cs.IR}
}
"""

MARGIN_MSE = """
@misc{hofstätter2021improving,
    title={Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation},
    author={Sebastian Hofstätter and Sophia Althammer and Michael Schröder and Mete Sertkan and Allan Hanbury},
    year={2021},
    eprint={2010.02666},
    archivePrefix={arXiv},
    primaryClass={cs.IR}
}
"""

DISTRIBUTION = """
@misc{bao-out-of-distribution,
    title={Alleviating Performance Degradation Caused by Out-of-Distribution Issues in Embedding-Based Retrieval},
    author={Haotong Bao and Jianjin Zhang and Qi Chen and Weihao Han and Zhengxin Zeng and Ruiheng Chang and
            Mingzheng Li and Hao Sun and Weiwei Deng and Feng Sun and Qi Zhang}
}
"""

GRADCACHE = """
@misc{gao2021scaling,
    title={Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
    author={Luyu Gao and Yunyi Zhang and Jiawei Han and Jamie Callan},
    year={2021},
    eprint={2101.06983},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""
