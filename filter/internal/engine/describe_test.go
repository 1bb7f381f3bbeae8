package engine_test

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

func init() {
	engine.Describe(
		func(v *decide.Verdict) string { return string(respond.AppendReport(nil, v)) },
		func(style policy.Headers, v *decide.Verdict) (list []engine.Field) {
			f := respond.Fields{Style: style}
			for _, field := range f.Append(nil, v) {
				list = append(list, engine.Field(field))
			}
			return list
		},
		func(r engine.Result) string { return string(respond.AppendResult(nil, &r)) })
}
