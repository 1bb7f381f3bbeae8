module example.com/limits

go 1.26.0

require github.com/sluice-ratelimit/sluice v0.0.0

replace github.com/sluice-ratelimit/sluice => ../..
