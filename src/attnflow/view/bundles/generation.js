// Made by bundle.mjs of attnflow's sources, sha256 4df93e0befdc1c6d4152a4003e10b5106feb9b9c0afe4abf63008a4f890178c5.
