// Made by bundle.mjs of attnflow's sources, sha256 9ecfe940d5333346e5fe76f8efd598e941c4db01905fc40c2c29218cd2245c73.
