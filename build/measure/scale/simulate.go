package scale

import (
	"bytes"
	"context"
	"fmt"
)

// simulated is how many requests one run of simulate gets.
const simulated = 20_000

// simulate measures requests per second of simulate: the time of many less that of
// one.
func (b *bench) simulate(ctx context.Context) error {
	for _, rules := range []int{10, 1000} {
		policy, err := b.file("simulated.yaml", policyOf(rules, 10))
		if err != nil {
			return err
		}
		one, err := b.file("one.jsonl", requestsFor(rules, 1))
		if err != nil {
			return err
		}
		many, err := b.file("many.jsonl", requestsFor(rules, simulated))
		if err != nil {
			return err
		}
		for _, workers := range []string{"1", "4"} {
			rate := func() ([]float64, error) {
				start, err := b.cli(ctx, "simulate", "-f", policy, "--workers", workers, "-r", one)
				if err != nil {
					return nil, err
				}
				all, err := b.cli(ctx, "simulate", "-f", policy, "--workers", workers, "-r", many)
				if n := bytes.Count(all.Out, []byte("\n")); err == nil && n != simulated {
					err = fmt.Errorf("simulate answered %d of %d requests", n, simulated)
				}
				return []float64{simulated / (all.Wall - start.Wall).Seconds(), ms(start.Wall)}, err
			}
			if _, err := rate(); err != nil { // compiles the filter, which is kept
				return err
			}
			name := fmt.Sprintf("%s rules, --workers %s", grouped(fmt.Sprint(rules)), workers)
			if err := b.take(ctx, []column{{name, "requests/s", 0}, {"its start, " + name, "ms", 0}}, rate); err != nil {
				return err
			}
		}
	}
	return nil
}
