package main

import (
	"context"
	"fmt"
	"strings"
)

// simulated is how many requests one run of simulate gets.
const simulated = 20_000

// simulate measures requests per second of simulate: the time of many less
// that of one.
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
		for _, workers := range []int{1, 4} {
			rate := func(int) ([]float64, error) {
				args := []string{"simulate", "-f", policy, "--workers", fmt.Sprint(workers), "-r"}
				start, err := b.command(ctx, append(args, one)...)
				if err != nil {
					return nil, err
				}
				all, err := b.command(ctx, append(args, many)...)
				if err != nil {
					return nil, err
				}
				if n := strings.Count(all.output, "\n"); n != simulated {
					return nil, fmt.Errorf("simulate answered %d of %d requests", n, simulated)
				}
				return []float64{simulated / (all.wall - start.wall).Seconds(), milliseconds(start.wall)}, nil
			}
			if _, err := rate(0); err != nil { // compiles the filter, which is kept
				return err
			}
			columns, err := b.repeat(ctx, rate)
			if err != nil {
				return err
			}
			name := fmt.Sprintf("%s rules, --workers %d", grouped(fmt.Sprint(rules)), workers)
			b.row(name, "requests/s", 0, columns[0]...)
			b.row("its start, "+name, "ms", 0, columns[1]...)
		}
	}
	return nil
}
