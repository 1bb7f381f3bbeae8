//go:build !wasm

// Declarations of functions without a body need an assembly file beside them. Outside wasm
// there is no proxy to call, and the linker says so to a program that would.
