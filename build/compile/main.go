// The compile command compiles the filter.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/sluice-ratelimit/sluice/build/wasm"
)

func main() {
	out := flag.String("o", "", "`file` to write the module to")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: compile -o FILE, in the root of the repository")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := wasm.Compile(".", *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
