//go:build !race

package buildtest

const race = false
