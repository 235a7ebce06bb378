"""Answers with what it was sent."""
import triton_python_backend_utils as triton


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = triton.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            answers.append(triton.InferenceResponse([triton.Tensor("OUTPUT0", tensor)]))
        return answers
