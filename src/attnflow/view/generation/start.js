// The script of the page of a generation.
export {};
