// Package plots draws what each algorithm admits of one and the same pattern of
// requests, and writes the figures of docs/algorithms.md.
//
// Its invariant: it decides nothing itself. The policies are the blocks of the page,
// the compiled filter decides, and the same tree gives the same bytes. It must never
// import shared/limit.
package plots

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/build/measure/machine"
	"github.com/sluice-ratelimit/sluice/build/measure/page"
)

const pageName = "algorithms"

// Command is the subcommand.
func Command() *cobra.Command {
	var c commandLine
	cmd := &cobra.Command{
		Use:   "plots",
		Short: "What each algorithm admits of the same requests: into docs/algorithms.md",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			figures, err := c.figures(cmd.Context(), "docs")
			if err != nil {
				return err
			}
			return figures.Write("docs")
		},
	}
	cmd.Flags().StringVar(&c.sluice, "sluice", "build/out/sluice", "`path` of the command line")
	cmd.Flags().StringVar(&c.wasm, "wasm", "build/out/sluice.wasm", "`path` of the filter")
	return cmd
}

// policyBlock is a policy of the page. The page shows img/NAME.svg of those that
// are drawn.
var policyBlock = regexp.MustCompile("(?ms)^```yaml (\\w+)\\.yaml\n(.*?)^```$")

// figures simulates every policy of the page and draws what comes out.
func (c commandLine) figures(ctx context.Context, docs string) (f page.Figures, err error) {
	text, err := os.ReadFile(filepath.Join(docs, pageName+".md"))
	if err != nil {
		return f, err
	}
	if c.dir, err = os.MkdirTemp("", "plots-"); err != nil {
		return f, err
	}
	defer os.RemoveAll(c.dir)
	var admitted, memory []string
	f = page.Figures{Page: pageName, Pictures: map[string][]byte{}}
	for _, block := range policyBlock.FindAllStringSubmatch(string(text), -1) {
		name, picture := block[1], block[1]+".svg"
		if err := os.WriteFile(c.file("policy.yaml"), []byte(block[2]), 0o600); err != nil {
			return f, err
		}
		size, err := c.memory(ctx, name)
		if err != nil {
			return f, err
		}
		memory = append(memory, size)
		if !strings.Contains(string(text), "(img/"+picture+")") {
			continue
		}
		r, err := c.simulate(ctx, name)
		if err != nil {
			return f, err
		}
		admitted = append(admitted, fmt.Sprintf("`%s` | %d of %d | %d", name, r.admitted(), len(r.requests), r.highest()))
		if f.Pictures[picture], err = r.picture(); err != nil {
			return f, err
		}
	}
	f.Sections = map[string]string{
		"admitted": page.Table("policy | admitted | most in any 10 s", admitted...),
		"memory":   page.Table("policy | live keys | slots | at most | bytes a key", memory...),
	}
	return f, nil
}

// commandLine is the command line and the filter that are run.
type commandLine struct{ sluice, wasm, dir string }

func (c commandLine) file(name string) string { return filepath.Join(c.dir, name) }

func (c commandLine) run(ctx context.Context, args ...string) ([]byte, error) {
	ran, err := machine.Run(exec.CommandContext(ctx, c.sluice, append(args, "-f", c.file("policy.yaml"))...))
	return ran.Out, err
}

// memory is a row of the table: what validate says of a policy's memory.
func (c commandLine) memory(ctx context.Context, name string) (row string, err error) {
	out, err := c.run(ctx, "validate", "--output", "json")
	if err != nil {
		return "", err
	}
	var v struct {
		Memory struct{ Keys, Slots, Bytes uint64 }
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return "", fmt.Errorf("read validate's output: %w", err)
	}
	m := v.Memory
	return fmt.Sprintf("`%s` | %d | %d | %.1f MiB | %d", name, m.Keys, m.Slots, float64(m.Bytes)/(1<<20), (m.Bytes+m.Keys/2)/m.Keys), nil
}
