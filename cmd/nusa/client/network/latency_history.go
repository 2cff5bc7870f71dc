package network

import (
	"fmt"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
)

func showLatencyHistory(c *cli.Session, o latencyOptions) error {
	region := c.Region
	if o.from != "" {
		region = o.from
	}
	if region != "" && region == o.to {
		return fmt.Errorf("--to: %s does not measure itself: name another region", region)
	}
	field := fmt.Sprintf("p%d_ms", o.percentile)
	return history.Show(c, history.Request(history.KindEdge, region, o.to, o.since), o.since, []string{field, "loss"})
}
