// Command plot draws what each algorithm admits of one and the same pattern of
// requests, from what `sluice simulate` prints, and writes the figures of
// docs/algorithms.md.
//
//	go run ./docs/plot        (in the root of the repository)
//
// Its invariant: it decides nothing itself. The policies are the blocks of the
// document, the verdicts are the compiled filter's, and the same tree gives the
// same bytes. It must never import shared/limit.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sluice-ratelimit/sluice/build/graft"
	"github.com/sluice-ratelimit/sluice/build/report"
)

// document is the page whose policies are drawn and whose figures are written.
const document = "algorithms.md"

func main() {
	var c command
	out := flag.String("out", "docs", "folder to write to")
	flag.StringVar(&c.sluice, "sluice", "", "the command line; default: built from this tree")
	flag.StringVar(&c.wasm, "wasm", "", "the filter; default: built from this tree")
	flag.Parse()
	if err := plot(c, *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func plot(c command, out string) error {
	dir, err := os.MkdirTemp("", "plot-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := c.build(dir); err != nil {
		return err
	}
	page, err := os.ReadFile(filepath.Join("docs", document))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(out, "img"), 0o750); err != nil {
		return err
	}
	var drawn []run
	var sizes []size
	for _, p := range policiesOf(string(page)) {
		file := filepath.Join(dir, p.name+".yaml")
		if err := os.WriteFile(file, []byte(p.text), 0o600); err != nil {
			return err
		}
		s, err := c.validate(p.name, file)
		if err != nil {
			return err
		}
		sizes = append(sizes, s)
		if !p.drawn {
			continue
		}
		r, err := c.simulate(p.name, file)
		if err != nil {
			return err
		}
		drawn = append(drawn, r)
		if err := report.Write(filepath.Join(out, "img", p.name+".svg"), r.svg()); err != nil {
			return err
		}
	}
	text, err := report.Fill(string(page), "plot", map[string]string{"admitted": admittedTable(drawn), "memory": memoryTable(sizes)})
	if err != nil {
		return err
	}
	return report.Write(filepath.Join(out, document), []byte(text))
}

// command is the command line and the filter that are run.
type command struct{ sluice, wasm string }

// build compiles what was not given.
func (c *command) build(dir string) error {
	if c.sluice == "" {
		c.sluice = filepath.Join(dir, "sluice")
		cmd := exec.Command("go", "build", "-o", c.sluice, "./controlplane/cmd/sluice")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("compile sluice: %w\n%s", err, out)
		}
	}
	if c.wasm == "" {
		c.wasm = filepath.Join(dir, "sluice.wasm")
		return graft.Compile(".", c.wasm)
	}
	return nil
}
