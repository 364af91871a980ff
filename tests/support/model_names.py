"""Names under which models are published, by the base model that each is a form of."""

FORMS: dict[str, str] = {
    # Qwen
    "qwen2-0.5b-instruct": "Qwen/Qwen2-0.5B-Instruct unsloth/Qwen2-0.5B-Instruct-bnb-4bit",
    "qwen2.5-0.5b-instruct": """
        Qwen/Qwen2.5-0.5B-Instruct unsloth/Qwen2.5-0.5B-Instruct-unsloth-bnb-4bit
        OPEA/Qwen2.5-0.5B-Instruct-int4-sym-inc mlx-community/Qwen2.5-0.5B-Instruct-4bit""",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B unsloth/Qwen2.5-7B-bnb-4bit mlx-community/Qwen2.5-7B-4bit",
    "qwen2.5-7b-instruct": """
        Qwen/Qwen2.5-7B-Instruct Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4
        Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8 Qwen/Qwen2.5-7B-Instruct-AWQ
        Qwen/Qwen2.5-7B-Instruct-GGUF mlx-community/Qwen2.5-7B-Instruct-8bit""",
    "qwen2.5-7b-instruct-1m": """
        Qwen/Qwen2.5-7B-Instruct-1M lmstudio-community/Qwen2.5-7B-Instruct-1M-GGUF
        mlx-community/Qwen2.5-7B-Instruct-1M-4bit""",
    "qwen2.5-coder-14b-instruct": """
        Qwen/Qwen2.5-Coder-14B-Instruct lmstudio-community/Qwen2.5-Coder-14B-Instruct-MLX-4bit""",
    "qwen2.5-math-7b": "Qwen/Qwen2.5-Math-7B unsloth/Qwen2.5-Math-7B-bnb-4bit",
    "qwen2.5-vl-3b-instruct": """
        Qwen/Qwen2.5-VL-3B-Instruct RedHatAI/Qwen2.5-VL-3B-Instruct-quantized.w4a16
        Qwen/Qwen2.5-VL-3B-Instruct-AWQ""",
    "qwen3-0.6b": """
        Qwen/Qwen3-0.6B Qwen/Qwen3-0.6B-FP8 Qwen/Qwen3-0.6B-GGUF Qwen/Qwen3-0.6B-MLX-bf16
        mlx-community/Qwen3-0.6B-4bit mlx-community/Qwen3-0.6B-8bit
        unsloth/Qwen3-0.6B-unsloth-bnb-4bit RedHatAI/Qwen3-0.6B-FP8-dynamic""",
    "qwen3-0.6b-base": "Qwen/Qwen3-0.6B-Base unsloth/Qwen3-0.6B-Base-unsloth-bnb-4bit",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B RedHatAI/Qwen3-1.7B-quantized.w4a16 unsloth/Qwen3-1.7B-FP8",
    "qwen3-8b": """
        Qwen/Qwen3-8B Qwen/Qwen3-8B-FP8 Qwen/Qwen3-8B-AWQ Qwen/Qwen3-8B-GGUF
        Qwen/Qwen3-8B-MLX-4bit Qwen/Qwen3-8B-MLX-bf16 mlx-community/Qwen3-8B-4bit
        mlx-community/Qwen3-8B-3bit mlx-community/Qwen3-8B-6bit mlx-community/Qwen3-8B-bf16
        mlx-community/Qwen3-8B-4bit-DWQ mlx-community/Qwen3-8B-4bit-DWQ-053125
        lmstudio-community/Qwen3-8B-MLX-8bit unsloth/Qwen3-8B-bnb-4bit
        unsloth/Qwen3-8B-unsloth-bnb-4bit RedHatAI/Qwen3-8B-FP8-dynamic
        RedHatAI/Qwen3-8B-quantized.w4a16 RedHatAI/Qwen3-8B-NVFP4 nvidia/Qwen3-8B-NVFP4
        nvidia/Qwen3-8B-FP8 JunHowie/Qwen3-8B-GPTQ-Int4 OpenVINO/Qwen3-8B-int4-ov
        bartowski/Qwen_Qwen3-8B-GGUF bartowski/Qwen_Qwen3-8B-GGUF/Qwen_Qwen3-8B-Q4_K_M.gguf
        Qwen/Qwen3-8B-GGUF:Q4_K_M""",
    "qwen3-8b-128k": "unsloth/Qwen3-8B-128K-GGUF unsloth/Qwen3-8B-128K-GGUF:UD-Q4_K_XL",
    "qwen3-8b-base": """
        Qwen/Qwen3-8B-Base unsloth/Qwen3-8B-Base-bnb-4bit mlx-community/Qwen3-8B-Base-4bit""",
    "qwen3-8b-speculator-eagle3": "RedHatAI/Qwen3-8B-speculator.eagle3",
    "qwen3-4b-instruct-2507": """
        Qwen/Qwen3-4B-Instruct-2507 Qwen/Qwen3-4B-Instruct-2507-FP8
        unsloth/Qwen3-4B-Instruct-2507-bnb-4bit mlx-community/Qwen3-4B-Instruct-2507-4bit
        cpatonn/Qwen3-4B-Instruct-2507-AWQ-4bit""",
    "qwen3-4b-thinking-2507": """
        Qwen/Qwen3-4B-Thinking-2507 Qwen/Qwen3-4B-Thinking-2507-FP8
        lmstudio-community/Qwen3-4B-Thinking-2507-MLX-4bit""",
    "qwen3-30b-a3b": """
        Qwen/Qwen3-30B-A3B Qwen/Qwen3-30B-A3B-GPTQ-Int4 mlx-community/Qwen3-30B-A3B-6bit
        mlx-community/Qwen3-30B-A3B-4bit-DWQ-05082025 QuixiAI/Qwen3-30B-A3B-AWQ
        nvidia/Qwen3-30B-A3B-NVFP4 unsloth/Qwen3-30B-A3B-GGUF""",
    "qwen3-235b-a22b-instruct-2507": """
        Qwen/Qwen3-235B-A22B-Instruct-2507 mlx-community/Qwen3-235B-A22B-Instruct-2507-4bit
        QuantTrio/Qwen3-235B-A22B-Instruct-2507-GPTQ-Int4-Int8Mix""",
    "qwen3-coder-30b-a3b-instruct": """
        Qwen/Qwen3-Coder-30B-A3B-Instruct Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8
        lmstudio-community/Qwen3-Coder-30B-A3B-Instruct-MLX-8bit
        QuantTrio/Qwen3-Coder-30B-A3B-Instruct-AWQ
        cyankiwi/Qwen3-Coder-30B-A3B-Instruct-AWQ-4bit
        mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit-dwq-v2""",
    "qwen3-coder-next": """
        Qwen/Qwen3-Coder-Next mlx-community/Qwen3-Coder-Next-5bit
        mlx-community/Qwen3-Coder-Next-bf16""",
    "qwen3-next-80b-a3b-thinking": """
        Qwen/Qwen3-Next-80B-A3B-Thinking mlx-community/Qwen3-Next-80B-A3B-Thinking-8bit""",
    "qwen3-vl-8b-instruct": """
        Qwen/Qwen3-VL-8B-Instruct-FP8 cyankiwi/Qwen3-VL-8B-Instruct-AWQ-4bit
        lmstudio-community/Qwen3-VL-8B-Instruct-MLX-8bit""",
    "qwen3-vl-2b-thinking": "mlx-community/Qwen3-VL-2B-Thinking-bf16 Qwen/Qwen3-VL-2B-Thinking",
    "qwen3-embedding-0.6b": """
        Qwen/Qwen3-Embedding-0.6B mlx-community/Qwen3-Embedding-0.6B-4bit-DWQ""",
    "qwen3.5-0.8b": """
        Qwen/Qwen3.5-0.8B mlx-community/Qwen3.5-0.8B-mixed_4_6
        mlx-community/Qwen3.5-0.8B-OptiQ-4bit bartowski/Qwen_Qwen3.5-0.8B-GGUF
        lmstudio-community/Qwen3.5-0.8B-GGUF/Qwen3.5-0.8B-Q4_K_M.gguf""",
    "qwen3.5-9b": """
        Qwen/Qwen3.5-9B mlx-community/Qwen3.5-9B-MLX-4bit QuantTrio/Qwen3.5-9B-AWQ
        lmstudio-community/Qwen3.5-9B-GGUF""",
    "qwen3.5-27b": "Qwen/Qwen3.5-27B mlx-community/Qwen3.5-27B-8bit",
    "qwen3.5-35b-a3b": "Qwen/Qwen3.5-35B-A3B mlx-community/Qwen3.5-35B-A3B-4bit",
    "qwen3.5-397b-a17b": """
        mlx-community/Qwen3.5-397B-A17B-6bit TheDrainFlorist/Qwen3.5-397B-A17B-VQ-2.2bpw""",
    "huihui-qwen3.5-35b-a3b-claude-4.6-opus-abliterated": """
        mlx-community/Huihui-Qwen3.5-35B-A3B-Claude-4.6-Opus-abliterated-4bit""",
    "qwen3.6-27b": """
        Qwen/Qwen3.6-27B mlx-community/Qwen3.6-27B-bf16 mlx-community/Qwen3.6-27B-mxfp8
        QuantTrio/Qwen3.6-27B-AWQ cyankiwi/Qwen3.6-27B-AWQ-INT4""",
    "qwen3.6-27b-mtp": "Jundot/Qwen3.6-27B-oQ8-mtp",
    "qwen3.8-27b": """
        cyankiwi/Qwen3.8-27B-AWQ-INT4 btbtyler09/Qwen3.8-27B-GPTQ-4bit unsloth/Qwen3.8-27B-NVFP4
        unsloth/Qwen3.8-27B-GGUF mlx-community/Qwen3.8-27B-4bit""",
    "huihui-qwen3.8-27b-abliterated": "ailexleon/Huihui-Qwen3.8-27B-abliterated-mlx-mixed_4_6",
    "josiefied-qwen3-8b-abliterated-v1": "mlx-community/Josiefied-Qwen3-8B-abliterated-v1-4bit",
    "qwq-32b": """
        Qwen/QwQ-32B Qwen/QwQ-32B-AWQ unsloth/QwQ-32B-GGUF unsloth/QwQ-32B-unsloth-bnb-4bit
        bartowski/Qwen_QwQ-32B-GGUF unsloth/QwQ-32B-GGUF/QwQ-32B-Q4_K_M.gguf""",
    "qwq-32b-preview": "Qwen/QwQ-32B-Preview unsloth/QwQ-32B-Preview-bnb-4bit",
    "qwen1.5-0.5b-chat": "Qwen/Qwen1.5-0.5B-Chat Qwen/Qwen1.5-0.5B-Chat-GPTQ-Int4",
    "qwen-14b-chat": "Qwen/Qwen-14B-Chat Qwen/Qwen-14B-Chat-Int4 ikawrakow/qwen-14b-chat-gguf",
    "qwen-14b-chat-llamafied": """
        MaziyarPanahi/Qwen-14B-Chat-LLaMAfied-GGUF/Qwen-14B-Chat-LLaMAfied.Q5_K_M.gguf""",
    # Llama
    "llama-2-7b": """
        meta-llama/Llama-2-7b-hf meta-llama/Llama-2-7b unsloth/llama-2-7b-bnb-4bit
        TheBloke/Llama-2-7B-GGUF/llama-2-7b.Q4_K_M.gguf TheBloke/Llama-2-7B-AWQ""",
    "llama-2-7b-chat": """
        meta-llama/Llama-2-7b-chat-hf TheBloke/Llama-2-7B-Chat-GGML TheBloke/Llama-2-7B-Chat-GPTQ
        TheBloke/Llama-2-7B-Chat-GGUF/llama-2-7b-chat.Q2_K.gguf""",
    "codellama-7b": "codellama/CodeLlama-7b-hf unsloth/codellama-7b-bnb-4bit",
    "codellama-7b-python": "codellama/CodeLlama-7b-Python-hf TheBloke/CodeLlama-7B-Python-GGUF",
    "tinyllama-1.1b-chat-v1.0": """
        TinyLlama/TinyLlama-1.1B-Chat-v1.0 TheBloke/TinyLlama-1.1B-Chat-v1.0-GPTQ
        TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF""",
    "tinyllama-1.1b-chat-v0.3": "TheBloke/TinyLlama-1.1B-Chat-v0.3-AWQ",
    "llama-3-8b": """
        meta-llama/Meta-Llama-3-8B unsloth/llama-3-8b-bnb-4bit
        akumaburn/llama-3-8b-bnb-4bit-GGUF""",
    "llama-3-8b-instruct": """
        meta-llama/Meta-Llama-3-8B-Instruct unsloth/llama-3-8b-Instruct-bnb-4bit
        mlx-community/Meta-Llama-3-8B-Instruct-4bit neuralmagic/Meta-Llama-3-8B-Instruct-FP8-KV
        lmstudio-community/Meta-Llama-3-8B-Instruct-GGUF""",
    "llama-3.1-8b": """
        meta-llama/Llama-3.1-8B meta-llama/Meta-Llama-3.1-8B unsloth/Llama-3.1-8B-bnb-4bit
        unsloth/Meta-Llama-3.1-8B-unsloth-bnb-4bit bartowski/Llama-3.1-8B-GGUF""",
    "llama-3.1-8b-instruct": """
        meta-llama/Llama-3.1-8B-Instruct meta-llama/Meta-Llama-3.1-8B-Instruct
        mlx-community/Meta-Llama-3.1-8B-Instruct-4bit mlx-community/Meta-Llama-3.1-8B-Instruct-bf16
        RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8 RedHatAI/Llama-3.1-8B-Instruct-FP8
        unsloth/Llama-3.1-8B-Instruct-FP8-Block unsloth/Llama-3.1-8B-Instruct-FP8-Dynamic
        neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16
        RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8 nvidia/Llama-3.1-8B-Instruct-FP8
        nvidia/Llama-3.1-8B-Instruct-NVFP4 nvidia/Llama-3.1-8B-Instruct-FP4
        hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4
        hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4
        hugging-quants/Meta-Llama-3.1-8B-Instruct-BNB-NF4
        bartowski/Meta-Llama-3.1-8B-Instruct-GGUF
        bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:IQ4_XS""",
    "llama-3.1-8b-instruct-abliterated": """
        mlx-community/Meta-Llama-3.1-8B-Instruct-abliterated-8bit""",
    "llama-3.1-70b-instruct-lorablated": "mlabonne/Llama-3.1-70B-Instruct-lorablated-GGUF",
    "llama-3.1-405b-instruct": """
        meta-llama/Llama-3.1-405B-Instruct meta-llama/Llama-3.1-405B-Instruct-FP8
        neuralmagic/Meta-Llama-3.1-405B-Instruct-quantized.w4a16""",
    "llama-3.1-nemotron-70b-instruct": """
        nvidia/Llama-3.1-Nemotron-70B-Instruct-HF unsloth/Llama-3.1-Nemotron-70B-Instruct-bnb-4bit
        mlx-community/Llama-3.1-Nemotron-70B-Instruct-HF-4bit
        RedHatAI/Llama-3.1-Nemotron-70B-Instruct-HF-FP8-dynamic""",
    "llama-3.1-nemotron-nano-4b-v1.1": """
        nvidia/Llama-3.1-Nemotron-Nano-4B-v1.1
        mlx-community/Llama-3.1-Nemotron-Nano-4B-v1.1-8bit""",
    "llama-3.1-nemotron-8b-ultralong-1m-instruct": """
        nvidia/Llama-3.1-Nemotron-8B-UltraLong-1M-Instruct
        mlx-community/Llama-3.1-Nemotron-8B-UltraLong-1M-Instruct-6bit""",
    "llama-3.1-nemotron-8b-ultralong-4m-instruct": """
        mlx-community/Llama-3.1-Nemotron-8B-UltraLong-4M-Instruct-4bit""",
    "hermes-3-llama-3.1-8b": """
        NousResearch/Hermes-3-Llama-3.1-8B unsloth/Hermes-3-Llama-3.1-8B-bnb-4bit""",
    "llama-3.2-1b-instruct": """
        meta-llama/Llama-3.2-1B-Instruct unsloth/Llama-3.2-1B-Instruct
        mlx-community/Llama-3.2-1B-Instruct-4bit RedHatAI/Llama-3.2-1B-Instruct-FP8-dynamic
        bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q6_K_L.gguf""",
    "llama-3.2-3b-instruct": """
        meta-llama/Llama-3.2-3B-Instruct unsloth/Llama-3.2-3B-Instruct-FP8-Dynamic
        bartowski/Llama-3.2-3B-Instruct-GGUF""",
    "llama-3.2-11b-vision-instruct": """
        meta-llama/Llama-3.2-11B-Vision-Instruct mlx-community/Llama-3.2-11B-Vision-Instruct-8bit
        unsloth/Llama-3.2-11B-Vision-Instruct-unsloth-bnb-4bit""",
    "llama-3.3-70b-instruct": """
        meta-llama/Llama-3.3-70B-Instruct mlx-community/llama-3.3-70b-instruct-fp16
        nvidia/Llama-3.3-70B-Instruct-FP4 unsloth/Llama-3.3-70B-Instruct-FP8-Block""",
    "llama-4-scout-17b-16e-instruct": """
        meta-llama/Llama-4-Scout-17B-16E-Instruct mlx-community/Llama-4-Scout-17B-16E-Instruct-6bit
        RedHatAI/Llama-4-Scout-17B-16E-Instruct-quantized.w4a16""",
    "llama-4-maverick-17b-128e-instruct": """
        meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8
        mlx-community/Llama-4-Maverick-17B-128E-Instruct-4bit""",
    # Mistral
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1 TheBloke/Mistral-7B-v0.1-GPTQ",
    "mistral-7b-v0.3": "mistralai/Mistral-7B-v0.3 unsloth/mistral-7b-v0.3-bnb-4bit",
    "mistral-7b-instruct-v0.2": """
        mistralai/Mistral-7B-Instruct-v0.2 TheBloke/Mistral-7B-Instruct-v0.2-AWQ
        TheBloke/Mistral-7B-Instruct-v0.2-GGUF/mistral-7b-instruct-v0.2.Q4_K_M.gguf
        unsloth/mistral-7b-instruct-v0.2-bnb-4bit mlx-community/Mistral-7B-Instruct-v0.2-4bit
        LoneStriker/Mistral-7B-Instruct-v0.2-5.0bpw-h6-exl2""",
    "mistral-7b-instruct-v0.3": """
        mistralai/Mistral-7B-Instruct-v0.3 mlx-community/Mistral-7B-Instruct-v0.3-4bit
        neuralmagic/Mistral-7B-Instruct-v0.3-GPTQ-4bit""",
    "mixtral-8x7b-instruct-v0.1": """
        mistralai/Mixtral-8x7B-Instruct-v0.1 TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ
        unsloth/Mixtral-8x7B-Instruct-v0.1-unsloth-bnb-4bit
        mlx-community/Mixtral-8x7B-Instruct-v0.1-hf-4bit-mlx""",
    "mistral-nemo-instruct-2407": """
        mistralai/Mistral-Nemo-Instruct-2407 mlx-community/Mistral-Nemo-Instruct-2407-4bit
        unsloth/Mistral-Nemo-Instruct-2407-bnb-4bit""",
    "mistral-nemo-base-2407": "mistralai/Mistral-Nemo-Base-2407",
    "mistral-small-3.2-24b-instruct-2506": """
        mistralai/Mistral-Small-3.2-24B-Instruct-2506
        RedHatAI/Mistral-Small-3.2-24B-Instruct-2506-FP8
        unsloth/Mistral-Small-3.2-24B-Instruct-2506-FP8""",
    "ministral-3-14b-instruct-2512": """
        mistralai/Ministral-3-14B-Instruct-2512 mlx-community/Ministral-3-14B-Instruct-2512-nvfp4
        mistralai/Ministral-3-14B-Instruct-2512-BF16""",
    "ministral-3-14b-reasoning-2512": "mistralai/Ministral-3-14B-Reasoning-2512",
    "devstral-small-2507": """
        mistralai/Devstral-Small-2507 bartowski/mistralai_Devstral-Small-2507-GGUF
        mlx-community/Devstral-Small-2507-4bit-DWQ""",
    "devstral-small-2-24b-instruct-2512": """
        mistralai/Devstral-Small-2-24B-Instruct-2512
        mlx-community/Devstral-Small-2-24B-Instruct-2512-5bit""",
    "magistral-small-2509": """
        mistralai/Magistral-Small-2509 unsloth/Magistral-Small-2509-FP8-Dynamic
        unsloth/Magistral-Small-2509-unsloth-bnb-4bit""",
    "codestral-22b-v0.1": "mistralai/Codestral-22B-v0.1 bartowski/Codestral-22B-v0.1-GGUF",
    "pixtral-12b": "mlx-community/pixtral-12b-8bit mistral-community/pixtral-12b",
    # Gemma
    "gemma-2-2b-it": """
        google/gemma-2-2b-it mlx-community/gemma-2-2b-it-4bit
        espressor/google.gemma-2-2b-it_W8A8_FP8
        bartowski/gemma-2-2b-it-GGUF/gemma-2-2b-it-Q4_K_M.gguf""",
    "gemma-2b-it": "google/gemma-2b-it mlx-community/quantized-gemma-2b-it",
    "gemma-3-27b-it": """
        google/gemma-3-27b-it google/gemma-3-27b-it-qat-q4_0-gguf
        google/gemma-3-27b-it-qat-q4_0-unquantized mlx-community/gemma-3-27b-it-qat-4bit
        bartowski/google_gemma-3-27b-it-qat-GGUF RedHatAI/gemma-3-27b-it-quantized.w4a16""",
    "gemma-3-27b-pt": "google/gemma-3-27b-pt unsloth/gemma-3-27b-pt-unsloth-bnb-4bit",
    "gemma-3-1b-it": "google/gemma-3-1b-it mlx-community/gemma-3-1b-it-qat-4bit",
    "gemma-3n-e4b-it": "google/gemma-3n-E4B-it unsloth/gemma-3n-E4B-it-unsloth-bnb-4bit",
    "gemma-4-26b-a4b-it": """
        google/gemma-4-26B-A4B-it mlx-community/gemma-4-26b-a4b-it-6bit
        cyankiwi/gemma-4-26B-A4B-it-AWQ-4bit mlx-community/gemma-4-26B-A4B-it-qat-4bit""",
    "gemma-4-e4b-it": "google/gemma-4-E4B-it mlx-community/gemma-4-e4b-it-bf16",
    "gemma-4-e4b-it-assistant": "mlx-community/gemma-4-E4B-it-assistant-bf16",
    "gemma-4-e4b-it-ultra-uncensored-heretic": """
        zecanard/gemma-4-E4B-it-ultra-uncensored-heretic-MLX-4bit-mixed_4_6""",
    "gemma-4-12b-it": "RedHatAI/gemma-4-12B-it-FP8-Dynamic google/gemma-4-12B-it",
    "gemma-4-e2b": "google/gemma-4-E2B unsloth/gemma-4-E2B-unsloth-bnb-4bit",
    "medgemma-4b-it": "google/medgemma-4b-it unsloth/medgemma-4b-it-unsloth-bnb-4bit",
    "diffusiongemma-26b-a4b-it": "mlx-community/diffusiongemma-26B-A4B-it-mxfp8",
    # Phi
    "phi-3-mini-4k-instruct": """
        microsoft/Phi-3-mini-4k-instruct microsoft/Phi-3-mini-4k-instruct-gguf
        unsloth/Phi-3-mini-4k-instruct-bnb-4bit mlx-community/Phi-3-mini-4k-instruct-4bit
        microsoft/Phi-3-mini-4k-instruct-onnx""",
    "phi-3-mini-128k-instruct": """
        microsoft/Phi-3-mini-128k-instruct mlx-community/Phi-3-mini-128k-instruct-4bit""",
    "phi-3.5-vision-instruct": "mlx-community/Phi-3.5-vision-instruct-bf16",
    "phi-4": "microsoft/phi-4 unsloth/phi-4-unsloth-bnb-4bit mlx-community/phi-4-4bit",
    "phi-4-mini-instruct": "microsoft/Phi-4-mini-instruct pytorch/Phi-4-mini-instruct-float8dq",
    "phi-4-mini-reasoning": """
        microsoft/Phi-4-mini-reasoning lmstudio-community/Phi-4-Mini-Reasoning-GGUF""",
    "phi-4-reasoning-plus": "microsoft/Phi-4-reasoning-plus unsloth/phi-4-reasoning-plus-GGUF",
    # DeepSeek
    "deepseek-r1": """
        deepseek-ai/DeepSeek-R1 mlx-community/DeepSeek-R1-4bit nvidia/DeepSeek-R1-FP4
        unsloth/DeepSeek-R1-GGUF/DeepSeek-R1-Q4_K_M-00001-of-00009.gguf""",
    "deepseek-r1-0528": """
        deepseek-ai/DeepSeek-R1-0528 nvidia/DeepSeek-R1-0528-NVFP4 unsloth/DeepSeek-R1-0528-BF16
        QuantTrio/DeepSeek-R1-0528-GPTQ-Int4-Int8Mix""",
    "deepseek-r1-0528-qwen3-8b": """
        deepseek-ai/DeepSeek-R1-0528-Qwen3-8B lmstudio-community/DeepSeek-R1-0528-Qwen3-8B-MLX-8bit
        QuantTrio/DeepSeek-R1-0528-Qwen3-8B-GPTQ-Int4-Int8Mix""",
    "deepseek-r1-distill-qwen-32b": """
        deepseek-ai/DeepSeek-R1-Distill-Qwen-32B unsloth/DeepSeek-R1-Distill-Qwen-32B-bnb-4bit
        RedHatAI/DeepSeek-R1-Distill-Qwen-32B-quantized.w4a16""",
    "deepseek-r1-distill-llama-8b": """
        deepseek-ai/DeepSeek-R1-Distill-Llama-8B mlx-community/DeepSeek-R1-Distill-Llama-8B-4bit""",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3 mlx-community/DeepSeek-V3-4bit",
    "deepseek-v3-0324": "deepseek-ai/DeepSeek-V3-0324 mlx-community/DeepSeek-V3-0324-4bit",
    "deepseek-v3.1": "deepseek-ai/DeepSeek-V3.1 mlx-community/DeepSeek-V3.1-8bit",
    "deepseek-v3.2": "deepseek-ai/DeepSeek-V3.2 mlx-community/DeepSeek-V3.2-4bit",
    "deepseek-v4-flash": """
        mlx-community/DeepSeek-V4-Flash mlx-community/DeepSeek-V4-Flash-mxfp4-bf16""",
    "deepseek-coder-v2-lite-instruct": """
        deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct RedHatAI/DeepSeek-Coder-V2-Lite-Instruct-FP8
        mlx-community/DeepSeek-Coder-V2-Lite-Instruct-4bit-mlx""",
    # gpt-oss
    "gpt-oss-20b": """
        openai/gpt-oss-20b mlx-community/gpt-oss-20b-MXFP4-Q8 mlx-community/gpt-oss-20b-MXFP4-Q4
        unsloth/gpt-oss-20b-unsloth-bnb-4bit unsloth/gpt-oss-20b-GGUF
        bartowski/openai_gpt-oss-20b-GGUF 2imi9/gpt-oss-20B-NVFP4A16-BF16
        ggml-org/gpt-oss-20b-GGUF/gpt-oss-20b-mxfp4.gguf unsloth/gpt-oss-20b-BF16""",
    "gpt-oss-120b": """
        openai/gpt-oss-120b mlx-community/gpt-oss-120b-MXFP4-Q8
        lmstudio-community/gpt-oss-120b-mlx-8bit""",
    "gpt-oss-20b-speculator-eagle3": "RedHatAI/gpt-oss-20b-speculator.eagle3",
    "gpt-oss-safeguard-20b": "openai/gpt-oss-safeguard-20b unsloth/gpt-oss-safeguard-20b",
    # GLM
    "glm-4.5-air": """
        zai-org/GLM-4.5-Air zai-org/GLM-4.5-Air-FP8 mlx-community/GLM-4.5-Air-8bit
        mlx-community/GLM-4.5-Air-bf16 mlx-community/GLM-4.5-Air-5bit-DWQ-lr8e8
        QuantTrio/GLM-4.5-Air-GPTQ-Int4-Int8Mix QuantTrio/GLM-4.5-Air-AWQ-FP16Mix""",
    "glm-4.6": "zai-org/GLM-4.6 zai-org/GLM-4.6-FP8 QuantTrio/GLM-4.6-GPTQ-Int4-Int8Mix",
    "glm-4.6v": "zai-org/GLM-4.6V mlx-community/GLM-4.6V-nvfp4",
    "glm-4.6v-flash": """
        lmstudio-community/GLM-4.6V-Flash-MLX-8bit mlx-community/GLM-4.6V-Flash-mxfp4""",
    "glm-4.7": """
        zai-org/GLM-4.7 mlx-community/GLM-4.7-8bit-gs32 mlx-community/GLM-4.7-6bit""",
    "glm-4.7-flash": """
        zai-org/GLM-4.7-Flash mlx-community/GLM-4.7-Flash-5bit cyankiwi/GLM-4.7-Flash-AWQ-4bit""",
    "glm-4.7-reap-50": "0xSero/GLM-4.7-REAP-50-W4A16",
    "glm-5": """
        zai-org/GLM-5 mlx-community/GLM-5-MXFP4-Q8 mlx-community/GLM-5-8bit-MXFP8
        mlx-community/GLM-5-bf16""",
    "glm-5.1": """
        mlx-community/GLM-5.1 mlx-community/GLM-5.1-DQ4plus-q8 mlx-community/GLM-5.1-MXFP4-Q8""",
    "glm-4.1v-9b-thinking": "mlx-community/GLM-4.1V-9B-Thinking-8bit",
    # Kimi, MiniMax, Step
    "kimi-k2-instruct": """
        moonshotai/Kimi-K2-Instruct mlx-community/Kimi-K2-Instruct-4bit
        unsloth/Kimi-K2-Instruct-BF16""",
    "kimi-k2-thinking": "moonshotai/Kimi-K2-Thinking mlx-community/Kimi-K2-Thinking",
    "kimi-k2.6": "moonshotai/Kimi-K2.6 mlx-community/Kimi-K2.6-mlx-DQ3_K_M-q8",
    "kimi-k2.7-code": "moonshotai/Kimi-K2.7-Code",
    "kimi-vl-a3b-thinking-2506": "mlx-community/Kimi-VL-A3B-Thinking-2506-bf16",
    "minimax-m2.1": "MiniMaxAI/MiniMax-M2.1 mlx-community/MiniMax-M2.1-3bit",
    "minimax-m2.7": """
        mlx-community/MiniMax-M2.7 mlx-community/MiniMax-M2.7-4bit-mxfp4
        mlx-community/MiniMax-M2.7-5bit""",
    "step-3.5-flash": "mlx-community/Step-3.5-Flash-8Bit mlx-community/Step-3.5-Flash-6bit",
    "step-3.7-flash": "mlx-community/Step-3.7-Flash-oQ2e",
    # Granite, SmolLM, Nemotron, Falcon, LFM, OLMo, others
    "granite-3.2-8b-instruct": """
        ibm-granite/granite-3.2-8b-instruct unsloth/granite-3.2-8b-instruct-unsloth-bnb-4bit""",
    "granite-4.0-h-1b": "ibm-granite/granite-4.0-h-1b unsloth/granite-4.0-h-1b-unsloth-bnb-4bit",
    "granite-4.0-h-1b-base": "ibm-granite/granite-4.0-h-1b-base",
    "granite-4.0-3b-vision": "mlx-community/granite-4.0-3b-vision-4bit",
    "smollm-1.7b-instruct": """
        HuggingFaceTB/SmolLM-1.7B-Instruct RedHatAI/SmolLM-1.7B-Instruct-quantized.w8a16""",
    "smollm2-135m-instruct": """
        HuggingFaceTB/SmolLM2-135M-Instruct SmolLM2-135M-Instruct
        SmolLM2-135M-Instruct.Q4_1.gguf mlx-community/SmolLM2-135M-Instruct""",
    "smolvlm2-2.2b-instruct": "mlx-community/SmolVLM2-2.2B-Instruct-mlx",
    "nemotron-3-nano-30b-a3b": """
        nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8
        lmstudio-community/NVIDIA-Nemotron-3-Nano-30B-A3B-MLX-8bit
        mlx-community/NVIDIA-Nemotron-3-Nano-30B-A3B-MLX-MXFP4
        mlx-community/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4
        unsloth/Nemotron-3-Nano-30B-A3B-GGUF""",
    "nemotron-3-nano-30b-a3b-base": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16",
    "nemotron-nano-9b-v2": """
        nvidia/NVIDIA-Nemotron-Nano-9B-v2 mlx-community/NVIDIA-Nemotron-Nano-9B-v2-4bits""",
    "nemotron-3-ultra-550b-a55b": "mlx-community/Nemotron-3-Ultra-550B-A55B-4bit",
    "falcon-h1-0.5b-instruct": """
        tiiuae/Falcon-H1-0.5B-Instruct tiiuae/Falcon-H1-0.5B-Instruct-GGUF""",
    "lfm2-1.2b": "LiquidAI/LFM2-1.2B unsloth/LFM2-1.2B-unsloth-bnb-4bit LiquidAI/LFM2-1.2B-GGUF",
    "lfm2.5-vl-450m": "LiquidAI/LFM2.5-VL-450M-MLX-bf16",
    "lfm2.5-vl-1.6b": "mlx-community/LFM2.5-VL-1.6B-bf16",
    "olmo-2-0325-32b-instruct": """
        allenai/OLMo-2-0325-32B-Instruct unsloth/OLMo-2-0325-32B-Instruct-unsloth-bnb-4bit""",
    "olmo-3-7b-think": "allenai/Olmo-3-7B-Think unsloth/Olmo-3-7B-Think-unsloth-bnb-4bit",
    "c4ai-command-r-08-2024": """
        CohereForAI/c4ai-command-r-08-2024 unsloth/c4ai-command-r-08-2024-bnb-4bit""",
    "ernie-4.5-vl-28b-a3b-thinking": "mlx-community/ERNIE-4.5-VL-28B-A3B-Thinking-bf16",
    "hermes-4-14b": "NousResearch/Hermes-4-14B bartowski/NousResearch_Hermes-4-14B-GGUF:Q4_K_M",
    "apriel-1.5-15b-thinker": "mlx-community/Apriel-1.5-15b-Thinker-6bit-MLX",
    "kwaipilot-kat-coder-v2.5-dev": "bartowski/Kwaipilot_KAT-Coder-V2.5-Dev-GGUF",
    "exaone-3.5-7.8b-instruct": """
        LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct-AWQ""",
    "muse-glimmer-30b": "mlx-community/Muse-Glimmer-30B-OptiQ-4bit",
}

NAMES: list[tuple[str, str]] = [
    (name, base) for base, names in FORMS.items() for name in names.split()
]
"""Every published name, with its base model."""
