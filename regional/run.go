package regional

import "context"

func run(ctx context.Context, cfg Config) error {
	<-ctx.Done()
	return nil
}
