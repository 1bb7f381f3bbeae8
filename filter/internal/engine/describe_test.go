package engine_test

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/describe"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func init() {
	engine.Describe(
		func(v *engine.Verdict) string { return string(describe.AppendReport(nil, v)) },
		func(style policy.Headers, v *engine.Verdict) (list []engine.Field) {
			f := describe.Fields{Style: style}
			for _, field := range f.Append(nil, v) {
				list = append(list, engine.Field(field))
			}
			return list
		},
		func(r engine.Result) string { return string(describe.AppendResult(nil, &r)) })
}
