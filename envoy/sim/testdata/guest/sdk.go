//go:build !arena

package main

const mallocs = -1

func version() string { return "1" }
