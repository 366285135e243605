// Made by bundle.mjs of attnflow's sources, sha256 a12b86edc6ba2816e57378cf6880f20c4848fc5ab62585af3965ca2dee526717.
