//go:build long

package main_test

func init() { manyStreams = 100_000 }
