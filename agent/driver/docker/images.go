package docker

import (
	"context"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// images gives access to the images of an engine.
type images struct {
	cli     *client.Client
	address address
	// authFile is the file with the passwords of registries, or "".
	authFile string
}

// ensure makes sure that the task's image is on the node and fits the architecture of the
// engine. It returns the properties of the image.
func (i images) ensure(ctx context.Context, c settings) (client.ImageInspectResult, error) {
	img, err := i.cli.ImageInspect(ctx, c.image)
	absent := cerrdefs.IsNotFound(err)
	switch {
	case err != nil && !absent:
		return img, i.address.refused("config.image", err)
	case absent && c.pull == "never":
		return img, fmt.Errorf("%w: config.image: this node has no image %q and config.pull is never: pull the image on the node, or change config.pull: %w",
			driver.ErrImage, c.image, i.address.wrap(err))
	case absent || c.pull == "always":
		if err := i.pull(ctx, c.image); err != nil {
			return img, i.pullError(c.image, err)
		}
		img, err = i.cli.ImageInspect(ctx, c.image)
		if err != nil {
			return img, i.address.refused("config.image", err)
		}
	}
	v, err := i.cli.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return img, i.address.refused("config.image", err)
	}
	if !runsOn(img.Architecture, v.Arch) {
		return img, fmt.Errorf("%w: config.image: %s is for %s, the engine runs %s: name an image for that architecture", driver.ErrImage, c.image, img.Architecture, v.Arch)
	}
	return img, nil
}

// runsOn reports whether the engine can run programs of an image's architecture.
func runsOn(image, engine string) bool {
	return image == "" || image == engine || image == "386" && engine == "amd64" || image == "arm" && engine == "arm64"
}

func (i images) pull(ctx context.Context, image string) error {
	auth, err := i.auth(image)
	if err != nil {
		return err
	}
	res, err := i.cli.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	defer res.Close()
	return res.Wait(ctx)
}

// pullError adds the remedy to the error of a failed pull. The result is an ErrImage if
// the registry does not have the image or does not show it.
func (i images) pullError(image string, err error) error {
	if client.IsErrConnectionFailed(err) {
		return i.address.refused("config.image", err)
	}
	if cerrdefs.IsNotFound(err) || cerrdefs.IsInvalidArgument(err) {
		return fmt.Errorf("%w: config.image: the registry has no image %q or does not show it without a password: check its name and tag, and --docker-auth of the agent: %w",
			driver.ErrImage, image, i.address.wrap(err))
	}
	return fmt.Errorf("%w: config.image: %q could not be pulled: check that this node reaches the registry, and --docker-auth of the agent: %w", driver.ErrImageFetch, image, i.address.wrap(err))
}
