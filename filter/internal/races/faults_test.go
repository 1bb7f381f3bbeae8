package races

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
)

// fault is a mistake that a lessor or lessee of units can make. The sources of all
// faults are compiled into one copy of this test, which SLUICE_PLANTED chooses from.
type fault struct {
	name  string
	id    string
	edits []edit
	race  string // the scenario that finds it
	want  string // part of the error
}

// edit replaces what a file says once. In the new text planted is the chosen fault,
// and pick its first value if a fault is chosen, else its second.
type edit struct{ file, old, new string }

var faults = []fault{
	{"a grant is not deducted", "deduct", []edit{{
		"controlplane/internal/quota/decide.go", "charge{r.Add(units, terms), r.generation}", `charge{r.Add(pick("deduct", 0, units), terms), r.generation}`,
	}}, "hot key", "are admitted"},
	{"what goes back twice is taken back twice", "twice", []edit{{
		"controlplane/internal/quota/stream.go", "if g.units -= units; units == 0 {", `if g.units -= pick("twice", 0, units); units == 0 {`,
	}}, "idle units, a message twice", "were admitted, "},
	{"what goes back stays in the record", "stays", []edit{{
		"filter/internal/engine/hand.go", "units, g.Units = g.Units, 0", `units, g.Units = g.Units, pick("stays", g.Units, 0)`,
	}}, "idle units", "were admitted, "},
	{"units go back into a later window", "window", []edit{{
		"shared/limit/usage.go", "if w.endOf(after, at) <= now {\n\t\treturn !u.Slides", "if planted != \"window\" && w.endOf(after, at) <= now {\n\t\treturn !u.Slides",
	}}, "an hour ends", "were admitted, "},
	{"a lease is used after its end", "end", []edit{
		{"shared/state/lease.go", "g := &l.Grants[i]; g.EndNs > nowNs {", `g := &l.Grants[i]; g.EndNs > nowNs || planted == "end" {`},
		{"shared/state/lease.go", "if g.Units > 0 && g.EndNs > nowNs &&", `if g.Units > 0 && (g.EndNs > nowNs || planted == "end") &&`},
	}, "a window ends", "are admitted in"},
	{"a lease begins with its answer", "answer", []edit{{
		"filter/internal/engine/hand.go", "EndNs: a.SentNs + ", `EndNs: pick("answer", e.host.Monotonic(), a.SentNs) + `,
	}}, "a window ends", "are admitted in"},
	{"units are merged under the later end", "merge", []edit{{
		"shared/state/lease.go", "\t\tcase g.Same(&h):\n",
		"\t\tcase planted == \"merge\" && g.Units > 0:\n\t\t\tg.Units, g.EndNs = g.Units+h.Units, max(g.EndNs, h.EndNs)\n\t\t\treturn 0, true\n\t\tcase g.Same(&h):\n",
	}}, "a window ends", "are admitted in"},
	{"a log's entries are stamped with their beginning", "stamp", []edit{{
		"shared/quota/rules.go", "stamp := max(s.StampNs, t.EndNs)\n\tc := Charge", "stamp := max(s.StampNs, pick(\"stamp\", s.NowNs, t.EndNs))\n\tc := Charge",
	}}, "log", "are admitted in"},
	{"a group is granted by half", "half", []edit{{
		"controlplane/internal/quota/group.go", "if g.result != lease.Granted && g.undo() {", `if planted != "half" && g.result != lease.Granted && g.undo() {`,
	}}, "group", "is stranded"},
	{"units go back on another stream", "stream", []edit{{
		"filter/internal/engine/hand.go", "if h.stream != stream {", `if planted != "stream" && h.stream != stream {`,
	}}, "idle units, a message twice", "were admitted, "},
}

const chooses = `

import "os"

var planted = os.Getenv("SLUICE_PLANTED")

func pick[T any](fault string, wrong, right T) T {
	if planted == fault {
		return wrong
	}
	return right
}
`

// compileFaulty compiles this test with all faults, and returns its file.
func compileFaulty(t *testing.T) string {
	t.Helper()
	dir, replace, texts := t.TempDir(), map[string]string{}, map[string]string{}
	put := func(file, text string) {
		copied := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		require.NoError(t, os.WriteFile(copied, []byte(text), 0o600))
		replace[filepath.Join(buildtest.Root(), file)] = copied
	}
	for _, f := range faults {
		for _, e := range f.edits {
			if texts[e.file] == "" {
				text, err := os.ReadFile(filepath.Join(buildtest.Root(), e.file))
				require.NoError(t, err)
				texts[e.file] = string(text)
				packageName, _, _ := strings.Cut(texts[e.file][strings.Index(texts[e.file], "\npackage ")+1:], "\n")
				if strings.HasPrefix(texts[e.file], "package ") {
					packageName, _, _ = strings.Cut(texts[e.file], "\n")
				}
				put(filepath.Join(filepath.Dir(e.file), "planted.go"), packageName+chooses)
			}
			require.Equal(t, 1, strings.Count(texts[e.file], e.old), "%s: how often %s says %q", f.name, e.file, e.old)
			texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
		}
	}
	for file, text := range texts {
		put(file, text)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "faulty.test")
	require.NoError(t, os.WriteFile(list, overlay, 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay="+list, "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// The exploration finds each planted fault, in the race that is there for it.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	binary, found := compileFaulty(t), 0
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^TestRaces$", "-races-only", f.race, "-races-random", "20000") // it ends when it has found something
			cmd.Env = append(os.Environ(), "SLUICE_PLANTED="+f.id)
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
	buildtest.Figure(t, "%d of %d planted faults found", found, len(faults))
}
