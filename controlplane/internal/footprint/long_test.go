//go:build long

package footprint

import "testing"

func TestBytesOfAThousandRules(t *testing.T) {
	for _, kind := range ruleKinds {
		requireRuleBytes(t, kind.rule, kind.most)
	}
}

func TestDenialBytesOfTenHeaps(t *testing.T) { requireDenialBytes(t, 10) }
