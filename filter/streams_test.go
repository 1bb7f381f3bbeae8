//go:build !long

package main_test

const manyStreams = 10_000
