// Command kube is a whole Kubernetes control plane, node and store in one binary.
//
// It is the program whose name it is called by, so one link per program points to it. All of them share
// most of their code: together they take 140 MB, apart they would take 600 MB and the time to link them.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(){
	"etcd":           func() { etcdmain.Main(os.Args) },
	"kube-apiserver": func() { serve(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() {
		serve(controllers.NewControllerManagerCommand())
	},
	"kube-proxy":     func() { serve(proxy.NewProxyCommand()) },
	"kube-scheduler": func() { serve(scheduler.NewSchedulerCommand()) },
	"kubectl":        runKubectl,
	"kubelet":        func() { serve(kubelet.NewKubeletCommand(context.Background())) },
}

func main() {
	run, known := programs[filepath.Base(os.Args[0])]
	if !known {
		names := make([]string, 0, len(programs))
		for name := range programs {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "called as %q; must be one of %s\n", os.Args[0], strings.Join(names, ", "))
		os.Exit(2)
	}
	run()
}

func serve(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

func runKubectl() {
	// Verbosity must be known before the command is built: building it already reads files and logs.
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
}
