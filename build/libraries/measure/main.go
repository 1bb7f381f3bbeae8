// Command measure asks the keyed library and others the same questions, and
// writes what they took to a file and into a document; `make bench-keyed` runs
// it.
//
// Its invariant: each figure is of a process of its own, so that no limiter pays
// for the memory of another, and the processes take turns, so that a slow minute
// of the machine falls on all. It must never be imported by the module it
// measures.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/sluice-ratelimit/sluice/build/libraries"
	"github.com/sluice-ratelimit/sluice/build/machine"
	"github.com/sluice-ratelimit/sluice/build/report"
	"github.com/sluice-ratelimit/sluice/build/sample"
)

func main() {
	rounds := flag.Int("rounds", 7, "how often each limiter is measured")
	keys := flag.Int("keys", 100_000, "how many keys there are")
	only := flag.String("only", "", "measure only limiters whose name or windows contain this")
	file := flag.String("json", "", "file to write the figures to")
	page := flag.String("page", "", "document to put the table into")
	one := flag.Int("limiter", -1, "measure that one in this process, once, and print it")
	flag.Parse()
	if err := run(*rounds, *keys, *only, *file, *page, *one); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(rounds, keys int, only, file, page string, one int) error {
	if one >= 0 {
		m, err := measure(limiters[one], keys)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(m)
	}
	r, err := measureAll(rounds, keys, only)
	if err != nil {
		return err
	}
	if only != "" {
		for _, row := range r.Rows {
			fmt.Printf("%s: %s: %.0f ns, %.0f by two, %.0f of one key, %d bytes, %d allocations\n", row.Limiter, row.Counts,
				sample.Median(row.Many), sample.Median(row.ManyShared), sample.Median(row.One), row.Bytes, row.Allocs)
		}
		return nil
	}
	table, err := r.Table()
	if err != nil {
		return err
	}
	fmt.Print(table)
	if file != "" {
		if err := r.Write(file); err != nil {
			return err
		}
	}
	if page == "" {
		return nil
	}
	return report.Update(page, r.Fill)
}

// measureAll runs this program once for each limiter and round.
func measureAll(rounds, keys int, only string) (libraries.Results, error) {
	cpu, err := machine.Processor()
	if err != nil {
		return libraries.Results{}, err
	}
	r := libraries.Results{CPU: cpu, Cores: runtime.NumCPU(), Go: runtime.Version(), Keys: keys, Rounds: rounds}
	var chosen []int
	for i, l := range limiters {
		name, err := versioned(l.module)
		if err != nil {
			return r, err
		}
		if !strings.Contains(name+" "+l.counts, only) {
			continue
		}
		chosen = append(chosen, i)
		r.Rows = append(r.Rows, libraries.Result{Limiter: name, Counts: l.counts})
	}
	for range rounds {
		for i, limiter := range chosen {
			out, err := exec.Command(os.Args[0], "-keys", fmt.Sprint(keys), "-limiter", fmt.Sprint(limiter)).Output()
			if err != nil {
				return r, fmt.Errorf("measure %s: %w", limiters[limiter].module, err)
			}
			var m measured
			if err := json.Unmarshal(out, &m); err != nil {
				return r, fmt.Errorf("measure %s: %w", limiters[limiter].module, err)
			}
			row := &r.Rows[i]
			row.Bytes, row.Allocs = m.Bytes, m.Allocs
			row.Many, row.ManyShared, row.One = append(row.Many, m.Many), append(row.ManyShared, m.ManyShared), append(row.One, m.One)
		}
	}
	return r, nil
}
