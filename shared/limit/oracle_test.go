//go:build !tinygo

package limit

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// limitsVersion is the release of the Python package limits to compare with.
const limitsVersion = "5.8.0"

// oracleTick is 1/512 s: whole nanoseconds here, an exact float there.
const oracleTick = second / 512

type oracleCase struct {
	Strategy string     `json:"strategy"`
	Limit    uint32     `json:"limit"`
	Seconds  int64      `json:"seconds"`
	Hits     [][2]int64 `json:"hits"` // ticks and cost
}

// oracleAnswer is 1 if a hit was admitted, else 0, and what remained before and
// after the hit.
type oracleAnswer [3]int64

// installLimits returns a directory from which Python can import the package.
func installLimits(t *testing.T, python string) string {
	out, err := filepath.Abs("../../build/out")
	require.NoError(t, err)
	site := filepath.Join(out, "limits-"+limitsVersion)
	if _, err := os.Stat(site); err == nil {
		return site
	}
	require.NoError(t, os.MkdirAll(out, 0o755))
	tmp, err := os.MkdirTemp(out, ".limits-") //nolint:usetesting // its content is renamed to out, so it must be on that file system
	require.NoError(t, err)
	defer os.RemoveAll(tmp)
	run := func(name string, args ...string) {
		text, err := exec.Command(name, args...).CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, text)
	}
	if err := exec.Command(python, "-c", "import ensurepip, venv").Run(); err != nil {
		require.Fail(t, "this test needs Python 3 with venv and pip: install python3-venv or set PYTHON", "%s: %v", python, err)
	}
	venv, staged := filepath.Join(tmp, "venv"), filepath.Join(tmp, "site")
	run(python, "-m", "venv", venv)
	run(filepath.Join(venv, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
		"--target", staged, "limits=="+limitsVersion)
	if err := os.Rename(staged, site); err != nil { // another process has installed it
		require.DirExists(t, site)
	}
	return site
}

// askLimits returns the package's answers to every hit of every case.
func askLimits(t *testing.T, cases []oracleCase) [][]oracleAnswer {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	question, err := json.Marshal(cases)
	require.NoError(t, err)
	cmd := exec.Command(python, "testdata/oracle.py")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+installLimits(t, python), "PYTHONDONTWRITEBYTECODE=1")
	var complaint bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(question), &complaint
	text, err := cmd.Output()
	require.NoError(t, err, "%s", complaint.String())
	var answers [][]oracleAnswer
	require.NoError(t, json.Unmarshal(text, &answers))
	require.Len(t, answers, len(cases))
	return answers
}

// strategies maps the package's names to our windows, with the known differences:
//
//   - Its moving window is closed and ours is half-open, so it may deny a hit when a
//     unit is exactly W old.
//   - Its sliding window counter computes in floats, so it may be one off when the
//     exact weighted count is a whole number.
//   - Its fixed window counts denied hits, also with a cost above the limit. With our
//     count_denied there is no difference.
var strategies = map[string]struct {
	window      func(units uint32, period int64) Window
	countDenied bool
	differs     func(w Window, u Usage, last, now int64) bool // whether the two may differ at now
}{
	"moving-window": {
		window: func(units uint32, period int64) Window {
			return Window{Algorithm: SlidingWindowLog, Limit: units, PeriodNs: period, Units: uint16(units)}
		},
		differs: func(w Window, u Usage, last, now int64) bool {
			return len(w.live(u.Log, now-1)) != len(w.live(u.Log, now))
		},
	},
	"fixed-window": {
		window: perKey, countDenied: true,
		differs: func(Window, Usage, int64, int64) bool { return false },
	},
	"sliding-window-counter": {
		window: func(units uint32, period int64) Window {
			return Window{Algorithm: SlidingWindowCounter, Limit: units, PeriodNs: period}
		},
		differs: func(w Window, u Usage, last, now int64) bool {
			w.rollCounter(&u, last, now)
			return u.Prev > 0 && times(int64(u.Prev), w.End(now)-now).Int64()%w.PeriodNs == 0
		},
	},
}

func randomCases(r *rand.Rand) []oracleCase {
	var cases []oracleCase
	for _, strategy := range slices.Sorted(maps.Keys(strategies)) {
		for range 60 {
			c := oracleCase{Strategy: strategy, Limit: uint32(1 + r.IntN(12)), Seconds: []int64{1, 2, 3, 7, 10, 60}[r.IntN(6)]}
			now := 1_700_000_000*512 + r.Int64N(1<<20)
			for range 60 {
				switch r.IntN(8) {
				case 0:
					now += c.Seconds * 512
				case 1:
					now += r.Int64N(3 * c.Seconds * 512)
				case 2:
					now += 512 - now%512
				case 3, 4:
				default:
					now += r.Int64N(c.Seconds*512/8 + 1)
				}
				cost := int64(1)
				if r.IntN(4) == 0 {
					cost = 1 + r.Int64N(int64(c.Limit)+2)
				}
				c.Hits = append(c.Hits, [2]int64{now, cost})
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// TestAgainstPythonLimits: with a frozen clock the package decides every hit as we
// do, except for the known differences. There the test counts what the package has
// decided, so that the two stay comparable.
func TestAgainstPythonLimits(t *testing.T) {
	cases := randomCases(rand.New(rand.NewPCG(5, 8)))
	answers := askLimits(t, cases)
	compared, followed := map[string]int{}, map[string]int{}
	for i, c := range cases {
		s := strategies[c.Strategy]
		w := s.window(c.Limit, c.Seconds*second)
		var u Usage
		last, differs := int64(0), false
		require.Len(t, answers[i], len(c.Hits))
		for n, hit := range c.Hits {
			now, cost, answer := hit[0]*oracleTick, uint32(hit[1]), answers[i][n]
			differs = s.differs(w, u, last, now) || (differs && now == last)
			u, last = rolled(w, u, last, now), now
			name := []any{"%s %d per %d s, hit %d: cost %d at tick %d: %+v", c.Strategy, c.Limit, c.Seconds, n, cost, hit[0], u}
			admitted := w.Check(&u, now, cost) == now
			before := int64(w.Remaining(&u, now))
			compared[c.Strategy]++
			if differs && (admitted != (answer[0] == 1) || before != answer[1]) {
				followed[c.Strategy]++
				admitted = answer[0] == 1
			} else {
				require.Equal(t, before, answer[1], name...)
				require.Equal(t, answer[0] == 1, admitted, name...)
			}
			if admitted || s.countDenied {
				u = added(w, u, now, cost)
			}
			if !differs {
				require.EqualValues(t, answer[2], w.Remaining(&u, now), name...)
			}
		}
	}
	require.Zero(t, followed["fixed-window"])
	require.Positive(t, followed["moving-window"], "no unit was exactly W old")
	for strategy, n := range compared {
		require.Equal(t, 3600, n)
		require.Less(t, followed[strategy], n/5, strategy)
		t.Logf("%s: %d hits, %d known differences", strategy, n, followed[strategy])
	}
}
