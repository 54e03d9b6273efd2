// Starts threads, by C's functions that Go's linker has linked in, and other programs. Says `ready`, and for each line of input what came of it.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// Who could resolve names has C's library for it.
var Resolver = net.DefaultResolver

// Goroutines that end with their threads, so that there are new ones each time.
func threads() int {
	var all sync.WaitGroup
	sums := make([]int, 20)
	for i := range sums {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			runtime.LockOSThread()
			for n := 0; n < 1000*i; n++ {
				sums[i] += n % 7
			}
		}(i)
	}
	all.Wait()
	sum := 0
	for _, one := range sums {
		sum += one
	}
	return sum
}

func children() int {
	ended := 0
	for i := 0; i < 10; i++ {
		if exec.Command("/bin/true").Run() == nil {
			ended++
		}
	}
	return ended
}

func main() {
	fmt.Println("ready")
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		if input.Text() == "children" {
			fmt.Println(children())
		} else {
			fmt.Println(threads())
		}
	}
}
