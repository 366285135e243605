// Made by bundle.mjs of attnflow's sources, sha256 16532b689b0cfad3df96319107e7049b32dc7b36660bba54c3a4d1f34ba4b76e.
