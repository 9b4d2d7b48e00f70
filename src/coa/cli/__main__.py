from coa.cli import main

main()
