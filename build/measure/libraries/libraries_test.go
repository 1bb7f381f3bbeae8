package libraries

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimiters(t *testing.T) {
	for _, l := range limiters {
		allow, err := l.build(10)
		require.NoError(t, err, l.module)
		for range 3 {
			require.True(t, allow("a"), l.module)
		}
	}
}

func TestTable(t *testing.T) {
	one := func(name string, ns float64, bytes int) row {
		return row{Limiter: name, Bytes: bytes, Many: []float64{ns}, ManyShared: []float64{ns}, One: []float64{ns}}
	}
	f := figures{Rows: []row{one("ours", 50, 41), one("go-limiter", 100, 9)}}
	require.Contains(t, f.table(), "| ours |  | 50 (50 to 50) | 0.50 |")
	require.Contains(t, f.table(), "0.50 of it, met; at most 40 bytes a key, **missed**.")
}
