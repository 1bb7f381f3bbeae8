package races

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// fault is a mistake that a lessor or lessee of units can make. One copy of this test
// has them all.
type fault struct {
	name  string
	id    string
	edits []buildtest.Edit
	race  string // the scenario that finds it
	want  string // part of the error
}

var faults = []fault{
	{"a grant is not deducted", "deduct", []buildtest.Edit{{
		File: "controlplane/internal/quota/decide.go",
		Old:  "charge{s.Add(units, terms), r.generation}",
		New:  `charge{s.Add(pick("deduct", 0, units), terms), r.generation}`,
	}}, "hot key", "are admitted"},
	{"what goes back twice is taken back twice", "twice", []buildtest.Edit{{
		File: "controlplane/internal/quota/stream.go",
		Old:  "if g.units = 0; units == 0 {",
		New:  `if g.units = pick("twice", g.units, 0); units == 0 {`,
	}}, "idle units, a message twice", "were admitted, "},
	{"what goes back stays in the record", "stays", []buildtest.Edit{{
		File: "filter/internal/lease/idle.go",
		Old:  "units, g.Units = g.Units, 0",
		New:  `units, g.Units = g.Units, pick("stays", g.Units, 0)`,
	}}, "idle units", "were admitted, "},
	{"units go back into a later window", "window", []buildtest.Edit{{
		File: "shared/limit/usage.go",
		Old:  "if w.endOf(after, at) <= now {\n\t\treturn !u.Slides",
		New:  "if planted != \"window\" && w.endOf(after, at) <= now {\n\t\treturn !u.Slides",
	}}, "an hour ends", "were admitted, "},
	{"a lease is used after its end", "end", []buildtest.Edit{
		{File: "shared/state/lease.go", Old: "g := &l.Grants[i]; g.EndNs > nowNs {", New: `g := &l.Grants[i]; g.EndNs > nowNs || planted == "end" {`},
		{File: "shared/state/lease.go", Old: "if g.Units > 0 && g.EndNs > nowNs &&", New: `if g.Units > 0 && (g.EndNs > nowNs || planted == "end") &&`},
	}, "a window ends", "are admitted in"},
	{"a lease begins with its answer", "answer", []buildtest.Edit{{
		File: "filter/internal/lease/stream.go",
		Old:  "r.endNs = g.sentNs + ",
		New:  `r.endNs = pick("answer", r.nowNs, g.sentNs) + `,
	}}, "a window ends", "are admitted in"},
	{"units are merged under the later end", "merge", []buildtest.Edit{{
		File: "shared/state/lease.go",
		Old:  "\t\tcase g.Same(&h):\n",
		New:  "\t\tcase planted == \"merge\" && g.Units > 0:\n\t\t\tg.Units, g.EndNs = g.Units+h.Units, max(g.EndNs, h.EndNs)\n\t\t\treturn 0, true\n\t\tcase g.Same(&h):\n",
	}}, "a window ends", "are admitted in"},
	{"a log's entries are stamped with their beginning", "stamp", []buildtest.Edit{{
		File: "shared/quota/state.go",
		Old:  "StampNs: max(s.NowNs, t.EndNs)",
		New:  `StampNs: max(s.NowNs, pick("stamp", 0, t.EndNs))`,
	}}, "log", "are admitted in"},
	{"a group is granted by half", "half", []buildtest.Edit{{
		File: "controlplane/internal/quota/group.go",
		Old:  "case g.result != lease.Granted && o.units > 0:",
		New:  `case planted != "half" && g.result != lease.Granted && o.units > 0:`,
	}}, "group", "is stranded"},
	{"a worker that stood still takes its clock for set back", "still", []buildtest.Edit{{
		File: "shared/state/table.go",
		Old:  "if !e.looked {",
		New:  `if !e.looked && planted != "still" {`,
	}}, "a worker stands still", "are admitted in"},
	{"units go back on another stream", "stream", []buildtest.Edit{{
		File: "filter/internal/lease/idle.go",
		Old:  "if h.stream != stream {",
		New:  `if planted != "stream" && h.stream != stream {`,
	}}, "idle units of two keys", "were admitted, "},
}

// compileFaulty compiles this test with all faults, and returns its file.
func compileFaulty(t *testing.T) string {
	t.Helper()
	var edits []buildtest.Edit
	for _, f := range faults {
		edits = append(edits, f.edits...)
	}
	binary := filepath.Join(t.TempDir(), "faulty.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", buildtest.Overlay(t, edits...), "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// The exploration finds each planted fault, in the race that is there for it.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	binary, found := compileFaulty(t), 0
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^TestRaces$", "-races-only", f.race,
				"-races-max", "0", "-races-random", "20000") // chance finds most of them sooner than the search
			cmd.Env = append(os.Environ(), buildtest.ChooseFault+"="+f.id)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "not found: %s", out)
			said := string(out)
			_, said, _ = strings.Cut(said, "Received unexpected error:\n")
			said, _, _ = strings.Cut(strings.TrimSpace(said), "\n")
			t.Logf("found: %s", said)
			require.NotEmpty(t, said, "%s", out)
			require.Contains(t, said, f.want)
			found++
		})
	}
	t.Logf("%d of %d planted faults found", found, len(faults))
}
