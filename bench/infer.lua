-- For wrk: the identity request of bench/kserve.py, 16 floats in binary form.
local json = '{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32",' ..
             '"parameters":{"binary_data_size":64}}],"parameters":{"binary_data_output":true}}'
wrk.method = "POST"
wrk.body = json .. string.rep("\0", 64)
wrk.headers["Inference-Header-Content-Length"] = tostring(#json)
