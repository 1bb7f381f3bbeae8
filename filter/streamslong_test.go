//go:build long

package main_test

const manyStreams = 100_000
